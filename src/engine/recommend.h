/* recommend.h - sampling as the model's makers recommend it, from what its files say. */
#ifndef TERN_ENGINE_RECOMMEND_H
#define TERN_ENGINE_RECOMMEND_H

#include "format/source.h"
#include "sample/sampler.h"

/* Writes over what o has; a recommendation that lies outside of what tern takes is left alone. */
void sample_recommended(struct sample_opt *o, const struct source *src);
#endif
