/* settings_impl.h - shared by the files of the settings: single knobs, YAML, help. */
#ifndef TERN_SERVER_SETTINGS_IMPL_H
#define TERN_SERVER_SETTINGS_IMPL_H

#include "base/jsonw.h"
#include "server/settings.h"

/* Where a value comes from; name is for errors: "--max-batch", "TERN_MAX_BATCH", "tern.yaml:12:
 * max-batch". */
struct knob_source {
    enum knob_from from;
    const char *name;
};

/* Checks the value, and stores it unless the knob has one from a better source. A value of a list
 * is appended to those from the same source. E_INVALID or E_NOMEM. */
int knob_set(struct settings *s, const struct knob *k, struct str value, struct knob_source src,
             struct err *e);
/* The settings that one model of the YAML list can have, in the order of enum model_key; `at` is an
 * offset in struct model_opt. Ends with name NULL. */
extern const struct knob model_knobs[];
/* NULL: a model has no such setting. */
const struct knob *model_knob_find(struct str name);
/* Checks and stores one of them. where: for errors. */
int knob_set_model(struct model_opt *o, const struct knob *k, struct str value, const char *where,
                   struct err *e);
void settings_model_release(struct settings_model *m); /* and zeroes it */
bool settings_model_is_equal(const struct settings_model *a, const struct settings_model *b);
/* The path of model i, or an object where it has settings of its own. */
void settings_model_json(const struct settings *s, int i, struct jsonw *w);
/* The value of a knob that is not a list; base: the struct that k->at is an offset in. */
void knob_write(struct jsonw *w, const void *base, const struct knob *k);
void knob_write_list(struct jsonw *w, const struct settings *s, const struct knob *k);
/* The value that is in force (settings_effective.c). */
void knob_write_effective(struct jsonw *w, const struct settings *s, const struct knob *k,
                          const struct settings_facts *f);
bool knob_is_equal(const struct settings *a, const struct settings *b, const struct knob *k);
void knob_move(struct settings *to, struct settings *from, const struct knob *k); /* not of lists */
void knob_free(struct settings *s, const struct knob *k);
/* The allowed values in words: "an integer from 1 to 65536". */
void knob_allowed(const struct knob *k, struct buf *out);
bool knob_parse_size(struct str s, double *out); /* "1.5G" */
/* A value of memory-limit that names devices (settings_limits.c). */
int settings_set_limits(struct settings *s, struct str list, struct knob_source src, struct err *e);
void knob_env(const struct knob *k, char out[64]); /* "TERN_MAX_BATCH" */

/* By name ("max-batch", also with underscores) or one of the other names; NULL: none. dashes: the
 * name is a flag as written, "--max-batch" or "-b". */
const struct knob *knob_find(struct str name, bool dashes);
/* The knob of which a name is most similar to a mistyped one; *as: that name. NULL: none is. */
const struct knob *knob_suggest(struct str name, struct str *as);

/* name: of the file, for errors. */
int settings_yaml(struct settings *s, struct str text, const char *name, struct err *e);
int settings_yaml_file(struct settings *s, const char *path, struct err *e);
/* Only knobs that mention word; empty: all. gateway: those of tern gateway. */
void settings_help(FILE *f, struct str word, bool gateway);
const char *settings_about(void); /* of the help: what the server does, examples */
const char *settings_placeholder(const struct knob *k); /* "SIZE"; NULL: a switch */

static inline int knob_index(const struct knob *k) { return (int)(k - settings_knobs); }
#endif
