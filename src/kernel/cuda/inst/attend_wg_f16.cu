/* attend_wg_f16.cu - warpgroup attention over F16 keys and values, heads of up to 128 dimensions. */
#include "kernel/cuda/attend_wg.cuh"

void attend_wgs(struct cuda *c, const struct attend_dev *a)
{
    bool small = a->dk <= 64 && a->dv <= 64;

    if (a->kv.type == DT_F16 && a->kv.aligned && small)
        wg_launch<64, DT_F16>(c, a, "attend tiles f16");
    else if (a->kv.type == DT_F16 && a->kv.aligned)
        wg_launch<128, DT_F16>(c, a, "attend tiles f16");
    else attend_wgs_converted(c, a);
}
