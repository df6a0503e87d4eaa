#include "engine/recommend.h"

/* From generation_config.json, else from GGUF's general.sampling keys. */
static void read_setting(const struct source *src, const char *hf, const char *gguf, double lo,
                         double hi, float *to)
{
    double v;
    if ((source_f64(src, hf, &v) || source_f64(src, gguf, &v)) && v >= lo && v <= hi)
        *to = (float)v;
}

void sample_recommended(struct sample_opt *o, const struct source *src)
{
    float top_k = (float)o->top_k;
    double all;
    bool sampled;

    read_setting(src, "generation_config:temperature", "general.sampling.temp", 0, 2, &o->temp);
    read_setting(src, "generation_config:top_p", "general.sampling.top_p", 0.01, 1, &o->top_p);
    read_setting(src, "generation_config:min_p", "general.sampling.min_p", 0, 0.99, &o->min_p);
    read_setting(src, "generation_config:top_k", "general.sampling.top_k", 0, 1e6, &top_k);
    read_setting(src, "generation_config:repetition_penalty", "general.sampling.penalty_repeat",
                 0.1, 10, &o->repeat_penalty);
    /* transformers applies it to the whole text. */
    if (source_f64(src, "generation_config:repetition_penalty", &all)) o->repeat_last = -1;
    if (source_bool(src, "generation_config:do_sample", &sampled) && !sampled) o->temp = 0;
    o->top_k = (int)top_k;
}
