/* scripts.h - splitting text where its script changes. */
#ifndef TERN_TOKEN_SCRIPTS_H
#define TERN_TOKEN_SCRIPTS_H

#include "base/buf.h"

/* Appends a pattern whose matches are the runs of one script; spaces go with what is before them,
 * and kana counts as Han. */
void scripts_pattern(struct buf *out);
#endif
