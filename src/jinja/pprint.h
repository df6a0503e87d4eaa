/* pprint.h - Python's pprint.pformat: repr() broken over lines of at most 80 columns, with sorted
 * keys. Inside jinja/ only. */
#ifndef TERN_JINJA_PPRINT_H
#define TERN_JINJA_PPRINT_H

#include "jinja/value.h"

struct jval pprint_value(struct render *r, struct jval v);
#endif
