/* hfconfig.h - config.json of a Hugging Face folder and the files beside it.
 *
 * The files are read as Python's json module reads them: NaN, Infinity and integers of any length
 * are allowed, and of two members with one name the last counts. Values that are handed out are
 * borrowed and live until hfconfig_close. Read-only once open: any thread may look keys up. */
#ifndef TERN_FORMAT_HFCONFIG_H
#define TERN_FORMAT_HFCONFIG_H

#include "format/source.h"

enum hfconfig_file {
    HFCONFIG_MODEL,      /* config.json */
    HFCONFIG_GENERATION, /* generation_config.json: sampling defaults, end tokens */
    HFCONFIG_TOKENIZER,  /* tokenizer_config.json */
    HFCONFIG_POOLING,    /* 1_Pooling/config.json of embedding models */
    HFCONFIG_MODULES,    /* modules.json of embedding models, a list */
    HFCONFIG_SCORE,      /* 1_LogitScore/config.json of generative rerankers */
    HFCONFIG_TERN,       /* tern.json, written by hand for models that need it */
    HFCONFIG_MODELOPT,   /* hf_quant_config.json of ModelOpt */
    HFCONFIG_GPTQ,       /* quantize_config.json of GPTQ tools */
    HFCONFIG_N_FILES
};

struct hfconfig;

/* config.json or tern.json must exist; the others are optional. E_NOTFOUND: neither does. */
int hfconfig_open(struct hfconfig **out, const char *dir, struct err *e);
/* The same from memory; an empty text is a file that does not exist. */
int hfconfig_parse(struct hfconfig **out, const struct str text[HFCONFIG_N_FILES], struct err *e);
void hfconfig_close(struct hfconfig *c); /* NULL is allowed */

/* Keys as source_key describes them. A key that config.json does not have is searched for in its
 * "text_config", too, where multimodal models keep the language model. */
bool hfconfig_key(const struct hfconfig *c, const char *key, struct value *out);
size_t hfconfig_n_keys(const struct hfconfig *c); /* top-level members of config.json */
const char *hfconfig_key_name(const struct hfconfig *c, size_t i);
#endif
