/* hfquant.h - quantized Hugging Face folders: which of their tensors make up a matrix, and how.
 *
 * A quantized linear layer X is stored as several tensors (X.qweight, X.scales, X.qzeros, ...).
 * This module finds them by name, type and shape and presents each layer as one tensor X.weight of
 * type DT_GROUPED, [out, in]. Its rows are made by hfquant_pack, in the layout of base/grouped.h,
 * with every bit of codes and scales kept. docs/quantize.md lists the schemes.
 *
 * The layouts are read-only; any thread may pack rows. */
#ifndef TERN_FORMAT_HFQUANT_H
#define TERN_FORMAT_HFQUANT_H

#include "base/grouped.h"
#include "format/gguf.h"
#include "format/hfconfig.h"
#include "format/safetensors.h"

struct hfquant;
struct hfquant_tensor; /* struct source_tensor has a pointer to it */

/* *out is NULL where config.json names no quantization, or one whose tensors need nothing of this
 * ("mxfp4"). A layer that cannot be read is listed, too: hfquant_check says why. */
int hfquant_open(struct hfquant **out, const struct hfconfig *config, const struct safetensors *t,
                 struct err *e);
/* Layouts of tensors of GGUF files: NVFP4 (with its scale, X.scale), Q2_0 and I2_S. */
int hfquant_open_gguf(struct hfquant **out, const struct gguf *g, struct err *e);
void hfquant_close(struct hfquant *q); /* NULL is allowed */

/* "fp8", "gptq", ...: quant_method of config.json, or what hf_quant_config.json and
 * quantize_config.json amount to. false: the folder is not quantized. */
bool hfquant_method(const struct hfconfig *config, struct str *out);
/* The methods that are read: "awq, bitnet, ..."; and is `method` one of them? */
const char *hfquant_methods(void);
bool hfquant_knows(struct str method);

const struct source_tensor *hfquant_find(const struct hfquant *q, struct str name); /* or NULL */
size_t hfquant_n_tensors(const struct hfquant *q);                                  /* NULL: 0 */
const struct source_tensor *hfquant_tensor(const struct hfquant *q, size_t i);
/* "gptq, 4 bits, groups of 128, zero points": how the layer is stored. */
void hfquant_describe(const struct hfquant_tensor *t, char *out, size_t cap);

/* E_FORMAT, E_UNSUPPORTED: the layer cannot be read, because tensors are missing or do not fit each
 * other. path is used in the message. */
int hfquant_check(const struct hfquant_tensor *t, const char *path, struct err *e);
/* The layout of its rows, complete but for factor and order, which hfquant_prepare reads from the
 * data. */
const struct grouped *hfquant_layout(const struct hfquant_tensor *t);
/* Elements of the order that hfquant_prepare wants; 0: none. */
size_t hfquant_order_len(const struct hfquant_tensor *t);
/* Are its columns in the order of their groups, as far as the file says? */
bool hfquant_is_ordered(const struct hfquant_tensor *t);
/* Fills *out for matrix i; order has hfquant_order_len elements, and is used if the columns of
 * the file are not in the order of groups. E_FORMAT: groups out of range. */
int hfquant_prepare(const struct hfquant_tensor *t, int64_t i, struct grouped *out, int32_t *order,
                    const char *path, struct err *e);

/* Packs n rows from `row` on (of all matrices, one after the other) as layout g, which
 * hfquant_prepare made, into rows of `stride` bytes. tmp: (n + 1) * in bytes. */
void hfquant_pack(const struct hfquant_tensor *t, const struct grouped *g, int64_t row, int n,
                  void *dst, size_t stride, uint8_t *tmp);

/* The tensors that it is made of: codes, scales, and others or NULL. */
enum { HFQUANT_PARTS = 5 };
const struct source_tensor *hfquant_part(const struct hfquant_tensor *t, int i);
#endif
