/* naming_impl.h - shared by the writers of GGUF keys: keys with the architecture in front. */
#ifndef TERN_MODEL_NAMING_IMPL_H
#define TERN_MODEL_NAMING_IMPL_H

#include "model/naming.h"

#include <stdio.h>

struct key_writer {
    const struct hparams *hp;
    struct ggufw *w;
    char buf[160]; /* the name of the current key */
};

/* "llama.NAME", valid until the next call. */
static inline const char *full_name(struct key_writer *k, const char *name)
{
    snprintf(k->buf, sizeof k->buf, "%s.%s", k->hp->arch, name);
    return k->buf;
}

static inline void put_int(struct key_writer *k, const char *name, int v)
{
    ggufw_u32(k->w, full_name(k, name), (uint32_t)v);
}

static inline void put_f32(struct key_writer *k, const char *name, double v)
{
    ggufw_f32(k->w, full_name(k, name), (float)v);
}

static inline void put_bool(struct key_writer *k, const char *name, bool v)
{
    ggufw_bool(k->w, full_name(k, name), v);
}

/* Heads and mixers of architectures with a mixer: naming_mix.c. */
int naming_mix_keys(struct key_writer *k, struct err *e);
int naming_hybrid_keys(struct key_writer *k, struct err *e); /* naming_hybrid.c */
/* Keys that single families have, and whether heads, or feed-forward widths, are among them:
 * naming_own.c, naming_hybrid.c. */
int naming_own_keys(struct key_writer *k, struct err *e);
bool naming_own_heads(const struct hparams *hp);
bool naming_own_widths(const struct hparams *hp);
/* Keys of mixtures (naming_own_moe.c); list, flags: scratch, [n_layers]. */
void naming_own_moe_keys(struct key_writer *k, int32_t *list, bool *flags);
#endif
