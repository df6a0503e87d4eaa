/* recommend.h - sampling settings that the model's makers recommend, from its files. */
#ifndef TERN_ENGINE_RECOMMEND_H
#define TERN_ENGINE_RECOMMEND_H

#include "format/source.h"
#include "sample/sampleopt.h"

/* Overwrites the fields of o that the files recommend. A value outside the range that tern accepts
 * is ignored. */
void sample_recommended(struct sample_opt *o, const struct source *src);
#endif
