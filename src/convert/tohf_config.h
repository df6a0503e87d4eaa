/* tohf_config.h - between the files that tell config.json: the object being written, and its keys.
 */
#ifndef TERN_CONVERT_TOHF_CONFIG_H
#define TERN_CONVERT_TOHF_CONFIG_H

#include "base/jsonw.h"
#include "convert/tohf.h"

struct config_out {
    const struct source *src;
    const struct hparams *hp;
    const struct arch *arch; /* the folder's kind of it */
    struct jsonw w;
};

double config_nice(double v);

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
    jsonw_key(&c->w, key), jsonw_num(&c->w, config_nice(v));
}

/* tohf_config_own.c: experts; keys that only one architecture has. */
void config_moe(struct config_out *c);
int config_own(struct config_out *c, struct err *e);
/* tohf_config_mix.c: mixers, encoders; mscale_all_dim of yarn over a latent, 0: none. */
int config_mix(struct config_out *c, struct err *e);
void config_encoder(struct config_out *c);
double config_mscale(const struct hparams *hp);
#endif
