/* settings_impl.h - what the parts of settings share. */
#ifndef TERN_SERVER_SETTINGS_IMPL_H
#define TERN_SERVER_SETTINGS_IMPL_H

#include "server/settings.h"

/* Where a value was found, for its errors: "--max-batch", "TERN_MAX_BATCH", "tern.yaml:12:
 * max-batch". */
struct knob_source {
    enum knob_from from;
    const char *name;
};

/* Checks the value and stores it, unless one from a better place is there already (then it is only
 * checked). A list's value is added to those from the same place. */
int knob_set(struct settings *s, const struct knob *k, struct str value, struct knob_source src,
             struct err *e);
void knob_json(const struct settings *s, const struct knob *k,
               struct buf *out); /* the value alone */
bool knob_same(const struct settings *a, const struct settings *b, const struct knob *k);
void knob_copy(struct settings *to, const struct settings *from, const struct knob *k);
void knob_free(struct settings *s, const struct knob *k);
/* What it takes, as words: "a whole number from 1 to 65536". */
void knob_allowed(const struct knob *k, struct buf *out);
void knob_env(const struct knob *k, char out[64]); /* "TERN_MAX_BATCH" */

/* By "max-batch", also with underscores, or one of the other names; NULL: none. dashes: of a flag
 * as written, "--max-batch" or "-b". */
const struct knob *knob_find(struct str name, bool dashes);
/* The knob whose name is nearest to a mistyped one; NULL: none is near. */
const struct knob *knob_near(struct str name);

/* `name` is for errors. */
int settings_yaml(struct settings *s, struct str text, const char *name, struct err *e);
int settings_yaml_file(struct settings *s, const char *path, struct err *e);
void settings_help(FILE *f, struct str word); /* empty word: everything */

static inline int knob_index(const struct knob *k) { return (int)(k - settings_knobs); }
#endif
