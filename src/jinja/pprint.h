/* pprint.h - values over several lines, as Python's pprint.pformat lays them out. Inside jinja/
 * only. */
#ifndef TERN_JINJA_PPRINT_H
#define TERN_JINJA_PPRINT_H

#include "jinja/value.h"

struct jval pprint(struct render *r, struct jval v);
#endif
