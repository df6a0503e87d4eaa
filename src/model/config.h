/* config.h - asking config.json: keys of the text model, wherever in the file they are. */
#ifndef TERN_MODEL_CONFIG_H
#define TERN_MODEL_CONFIG_H

#include "format/source.h"
#include "model/hparams.h"

struct config {
    const struct source *src;
    const char *in; /* "" or "text_config." */
    const struct arch *arch;
};

/* dict is "" or a path that ends in a dot: "rope_scaling." */
bool config_has(const struct config *c, const char *dict, const char *name);
bool config_f64(const struct config *c, const char *dict, const char *name, double *out);
bool config_str(const struct config *c, const char *dict, const char *name, struct str *out);
bool config_flag(const struct config *c, const char *dict, const char *name, bool otherwise);
bool config_int(const struct config *c, const char *name, int *out); /* 0 and more */
bool config_bool(const struct config *c, const char *name, bool otherwise);
/* Written as null: not the same as left out, where a library has a value of its own. */
bool config_null(const struct config *c, const char *name);
double config_or(const struct config *c, const char *name, double otherwise); /* null is 0 */
/* Of several spellings the first that is there; `names` ends with NULL. */
bool config_any(const struct config *c, const char *const *names, int *out);
int config_need(const struct config *c, const char *const *names, int *out, struct err *e);
bool config_value(const struct config *c, const char *dict, const char *name, struct value *out);

/* Parts of hparams_from_hf. */
int hparams_hf_ropes(const struct config *c, struct hparams *hp, struct arena *a, struct err *e);
void hparams_hf_windows(const struct config *c, struct hparams *hp);
int hparams_hf_moe(const struct config *c, struct hparams *hp, struct err *e);
/* Keys of mixers: those that say how tensors look, then the others. */
int hparams_mix_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_mix(const struct config *c, struct hparams *hp, struct err *e);
/* And of encoders. */
int hparams_encoder_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_encoder(const struct config *c, struct hparams *hp, struct err *e);
/* Keys of ARCH_OWN_KEYS: those that say how tensors look, then the others. */
int hparams_own_shapes(const struct config *c, struct hparams *hp, struct err *e);
int hparams_own(const struct config *c, struct hparams *hp, struct err *e);
#endif
