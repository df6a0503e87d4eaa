/* tohf_config.h - the config.json being written, shared by the tohf_config*.c files.
 *
 * Keys are spelled as the transformers library spells them for the architecture. Additions go into
 * a buf, which remembers a failed allocation; the caller of tohf_config checks it. */
#ifndef TERN_CONVERT_TOHF_CONFIG_H
#define TERN_CONVERT_TOHF_CONFIG_H

#include "base/jsonw.h"
#include "convert/tohf.h"

struct config_out {
    const struct source *src; /* the GGUF file */
    const struct hparams *hp;
    const struct arch *arch; /* the folder's architecture */
    struct jsonw w;
};

/* The shortest decimal text that is the same F32: GGUF stores F32, and 1e-05 is to stay 1e-05. */
double config_shortest(double v);

static inline void config_put_int(struct config_out *c, const char *key, int64_t v)
{
    jsonw_key(&c->w, key), jsonw_int(&c->w, v);
}
static inline void config_put_bool(struct config_out *c, const char *key, bool v)
{
    jsonw_key(&c->w, key), jsonw_bool(&c->w, v);
}
static inline void config_put_str(struct config_out *c, const char *key, const char *v)
{
    jsonw_key(&c->w, key), jsonw_str(&c->w, str_c(v));
}
static inline void config_put_num(struct config_out *c, const char *key, double v)
{
    jsonw_key(&c->w, key), jsonw_num(&c->w, config_shortest(v));
}
static inline void config_put_null(struct config_out *c, const char *key)
{
    jsonw_key(&c->w, key), jsonw_null(&c->w);
}

/* Is this the folder's model_type? */
static inline bool config_is(const struct config_out *c, const char *model_type)
{
    return strcmp(c->arch->hf[0], model_type) == 0;
}
/* Has the GGUF file a tensor whose name ends so? */
bool config_has_tensor(const struct config_out *c, const char *end);

/* tohf_config_arch.c: mixture of experts; keys that only one architecture has. */
void config_put_moe(struct config_out *c);
int config_put_special(struct config_out *c, struct err *e);
/* tohf_config_mix.c: sequence mixers other than attention; encoders; YaRN's mscale_all_dim of
 * multi-head latent attention (0: none). */
int config_put_mixer(struct config_out *c, struct err *e);
void config_put_encoder(struct config_out *c);
double config_mscale_all_dim(const struct hparams *hp);
#endif
