/* rotary.c - rotary scalings. yarn: Peng et al., "YaRN"; llama3: interpolation by wavelength (Llama
 * 3.1); longrope: Ding et al.; dynamic: NTK-aware base change. Computed in double, rounded once. */
#include "model/rotary.h"

#include <math.h>

#define PI 3.14159265358979323846

struct ramp {
    double low, high; /* pairs between which yarn goes from original to interpolated frequencies */
};

/* The index of the pair that makes n full rotations over the original context. */
static double find_yarn_dim(const struct rope_hp *r, double n)
{
    return r->n_rot * log(r->orig_ctx / (n * 2 * PI)) / (2 * log(r->theta));
}

/* beta_fast and beta_slow are numbers of rotations over the original context. */
static struct ramp make_yarn_ramp(const struct rope_hp *r)
{
    struct ramp p = { find_yarn_dim(r, r->beta_fast), find_yarn_dim(r, r->beta_slow) };
    if (r->truncate) {
        p.low = floor(p.low);
        p.high = ceil(p.high);
    }
    if (p.low < 0) p.low = 0;
    if (p.high > r->n_rot - 1) p.high = r->n_rot - 1;
    if (p.low == p.high) p.high += 0.001;
    return p;
}

static double scale_yarn(const struct rope_hp *r, struct ramp p, double inv, int i)
{
    double t = (i - p.low) / (p.high - p.low);
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return inv / r->factor * t + inv * (1 - t);
}

/* Long wavelengths are interpolated, short ones kept, those between blended. */
static double scale_llama3(const struct rope_hp *r, double inv)
{
    double wave = 2 * PI / inv;
    double s = (r->orig_ctx / wave - r->low_freq) / (r->high_freq - r->low_freq);
    if (wave > r->orig_ctx / r->low_freq) return inv / r->factor;
    if (wave < r->orig_ctx / r->high_freq) return inv;
    return (1 - s) * inv / r->factor + s * inv;
}

bool rotary_varies(const struct rope_hp *r)
{
    return r->scaling == ROPE_LONGROPE || r->scaling == ROPE_DYNAMIC;
}

/* longrope switches at the original context, dynamic scaling at the model's. */
bool rotary_is_long(const struct rope_hp *r, int seq_len)
{
    return rotary_varies(r) && seq_len > (r->scaling == ROPE_LONGROPE ? r->orig_ctx : r->max_ctx);
}

/* pow in double for every pair: the table is made once per model or step. */
void rotary_freq(const struct rope_hp *r, int seq_len, float *freq)
{
    struct ramp p = r->scaling == ROPE_YARN ? make_yarn_ramp(r) : (struct ramp){ 0, 1 };
    bool is_long = rotary_is_long(r, seq_len);
    const float *divide = is_long && !r->always_short ? r->long_factor : r->short_factor;
    double base = r->theta;

    if (r->scaling == ROPE_DYNAMIC && is_long && r->n_rot > 2)
        base *=
            pow(r->factor * seq_len / r->max_ctx - (r->factor - 1), r->n_rot / (r->n_rot - 2.0));

    for (int i = 0; i < r->n_rot / 2; i++) {
        double inv = pow(base, -2.0 * i / r->n_rot);
        switch (r->scaling) {
        case ROPE_LINEAR: inv /= r->factor; break;
        case ROPE_LLAMA3: inv = scale_llama3(r, inv); break;
        case ROPE_YARN: inv = scale_yarn(r, p, inv, i); break;
        case ROPE_LONGROPE: inv /= divide[i]; break;
        default: break;
        }
        if (r->n_turn && 2 * i >= r->n_turn) inv = 0;
        if (r->reverse) inv = -inv;
        freq[i] = (float)(r->freq_factors ? inv / r->freq_factors[i] : inv);
    }
}

double rotary_factor(const struct rope_hp *r, int seq_len)
{
    return r->attn_factor_long != 0 && rotary_is_long(r, seq_len) ? r->attn_factor_long
                                                                  : r->attn_factor;
}

/* 0.1 ln(factor) + 1, or the ratio of two such terms (DeepSeek). */
double rotary_yarn_factor(double factor, double mscale, double mscale_all_dim)
{
    double log_f = factor > 1 ? log(factor) : 0;
    if (mscale != 0 && mscale_all_dim != 0)
        return (0.1 * mscale * log_f + 1) / (0.1 * mscale_all_dim * log_f + 1);
    return 0.1 * log_f + 1;
}

double rotary_long_factor(double factor, double orig_ctx)
{
    return factor > 1 && orig_ctx > 1 ? sqrt(1 + log(factor) / log(orig_ctx)) : 1;
}
