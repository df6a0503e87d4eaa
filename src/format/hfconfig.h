/* hfconfig.h - config.json of a Hugging Face folder and its companions.
 *
 * Read as Python reads them: NaN, Infinity and whole numbers of any length are fine, of two
 * members of one name the last counts. What is handed out lives until hfconfig_close. */
#ifndef TERN_FORMAT_HFCONFIG_H
#define TERN_FORMAT_HFCONFIG_H

#include "format/source.h"

enum hfconfig_file {
    HFCONFIG_MODEL,
    HFCONFIG_GENERATION,
    HFCONFIG_TOKENIZER,
    HFCONFIG_POOLING,
    HFCONFIG_MODULES,
    HFCONFIG_TERN,
    HFCONFIG_N_FILES
};

struct hfconfig;

/* config.json must be there, or tern.json; generation_config.json, tokenizer_config.json,
 * 1_Pooling/config.json and modules.json may. */
int hfconfig_open(struct hfconfig **out, const char *dir, struct err *e);
/* From memory; texts that are empty stand for files that are not there. */
int hfconfig_parse(struct hfconfig **out, const struct str text[HFCONFIG_N_FILES], struct err *e);
void hfconfig_close(struct hfconfig *c); /* NULL is fine */

/* As source_key has it. What config.json lacks is looked for in its "text_config" too. */
bool hfconfig_key(const struct hfconfig *c, const char *key, struct value *out);
size_t hfconfig_n_keys(const struct hfconfig *c); /* top-level ones of config.json */
const char *hfconfig_key_name(const struct hfconfig *c, size_t i);
#endif
