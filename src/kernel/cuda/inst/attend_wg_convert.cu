/* attend_wg_convert.cu - warpgroup attention over KV types that the producer converts to F16. */
#include "kernel/cuda/attend_wg.cuh"

void attend_wgs_converted(struct cuda *c, const struct attend_dev *a)
{
    int type = a->kv.aligned ? a->kv.type : WG_ANY;

    if (type == DT_Q8_0) wg_launch<128, DT_Q8_0>(c, a, "attend tiles q8");
    else if (type == DT_BF16) wg_launch<128, DT_BF16>(c, a, "attend tiles bf16");
    else if (type == DT_F8_E4M3) wg_launch<128, DT_F8_E4M3>(c, a, "attend tiles f8");
    else wg_launch<128, WG_ANY>(c, a, "attend tiles any");
}
