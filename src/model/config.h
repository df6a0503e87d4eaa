/* config.h - look-ups in config.json, for the readers of hyper-parameters.
 *
 * Keys of the text model are at the top level or, in multimodal models, in "text_config". All
 * functions take the name without that prefix. The counterpart for GGUF is model/metakeys.h. */
#ifndef TERN_MODEL_CONFIG_H
#define TERN_MODEL_CONFIG_H

#include "format/source.h"
#include "model/hparams.h"

struct config {
    const struct source *src;
    const char *in; /* prefix of all keys: "" or "text_config." */
    const struct arch *arch;
};

/* dict is "" or the path of an object, with a final dot: "rope_scaling.". false: the key is
 * missing, null, or has another type; *out is unchanged. */
bool config_has(const struct config *c, const char *dict, const char *name);
bool config_f64(const struct config *c, const char *dict, const char *name, double *out);
bool config_str(const struct config *c, const char *dict, const char *name, struct str *out);
bool config_flag(const struct config *c, const char *dict, const char *name, bool otherwise);
bool config_int(const struct config *c, const char *name, int *out); /* not negative */
bool config_bool(const struct config *c, const char *name, bool otherwise);
/* The key is present with the value null. Not the same as missing: then a default applies. */
bool config_null(const struct config *c, const char *name);
double config_or(const struct config *c, const char *name,
                 double otherwise); /* 0 if the value is null */
/* The first of several names that is present; `names` ends with NULL. */
bool config_any(const struct config *c, const char *const *names, int *out);
/* A positive integer under one of the names; E_FORMAT if there is none. */
int config_need(const struct config *c, const char *const *names, int *out, struct err *e);
bool config_value(const struct config *c, const char *dict, const char *name, struct value *out);

/* E_UNSUPPORTED: "PATH: config.json: KEY WHY". */
int config_refuse(const struct config *c, const char *key, const char *why, struct err *e);

/* Parts of hparams_from_hf: rotary embeddings, sliding windows, experts. */
int hparams_hf_ropes(const struct config *c, struct hparams *hp, struct arena *a, struct err *e);
void hparams_hf_windows(const struct config *c, struct hparams *hp);
int hparams_hf_moe(const struct config *c, struct hparams *hp, struct err *e);
/* Keys of mixers: first those that determine tensor shapes, then the others. */
int hparams_mix_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_mix(const struct config *c, struct hparams *hp, struct err *e);
int hparams_csa_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_hybrid_shapes(const struct config *c, struct hparams *hp, struct err *e);
void hparams_hybrid(const struct config *c, struct hparams *hp);
/* The same for encoders. */
int hparams_encoder_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_encoder(const struct config *c, struct hparams *hp, struct err *e);
/* The same for architectures with ARCH_OWN_KEYS. */
int hparams_own_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_own(const struct config *c, struct hparams *hp, struct err *e);
/* Parts of the reader for mixtures of experts, and for gemma 3n and 4. */
int hparams_own_moe_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_own_moe(const struct config *c, struct hparams *hp, struct err *e);
int hparams_gemma_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_gemma(const struct config *c, struct hparams *hp, struct err *e);

/* "layer_types" or another list of strings says `name` of layer l. */
bool config_list_is(const struct config *c, const char *list, int l, const char *name);
/* The list has element l: its number in *out. */
bool config_list_int(const struct config *c, const char *list, int l, int *out);
bool config_list_f64(const struct config *c, const char *list, int l, double *out);
#endif
