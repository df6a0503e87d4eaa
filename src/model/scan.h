/* scan.h - looks for NaN and infinity in the weights of a model.
 *
 * One such number makes every answer that touches it worthless, so a model that has one is refused
 * unless the user allows it. A small model is scanned while it loads (weights.c). Reading all of a
 * large one would make loading many times longer, because weights are mapped and nothing else
 * reads them then; it is scanned by a thread of low priority that reads a fourth of the time, and a
 * find makes the source damaged (source_is_damaged), as a file that was truncated does.
 * `tern verify` scans everything before it answers. */
#ifndef TERN_MODEL_SCAN_H
#define TERN_MODEL_SCAN_H

#include "format/source.h"
#include "onnx/graph.h"

#include <stdatomic.h>

struct weight_item;
struct weight_list;

/* Models of up to so many bytes are scanned while they load: a millisecond or two. */
enum { SCAN_AT_ONCE = 16 << 20 };

/* One tensor. E_DAMAGED names it and the first row (of a vector: the element) that has a number
 * which is not finite. */
int scan_tensor(const struct source *s, const struct source_tensor *t, struct err *e);
/* The tensor of an item, and its scales where they are in another one. */
int scan_item(const struct source *s, const struct weight_item *w, struct err *e);
/* The constants of a graph; infinity is allowed in them (attention masks have it). */
int scan_graph(const struct onnx *m, struct err *e);

/* Scans the items in the background. list and s outlive it. NULL: no memory, or no thread. */
struct scan;
struct scan *scan_start(const struct source *s, const struct weight_list *list);
void scan_stop(struct scan *c); /* ends the thread; NULL is allowed */
#endif
