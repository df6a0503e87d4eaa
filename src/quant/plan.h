/* plan.h - which tensor gets which data type when a model is quantized, and why.
 *
 * A mix is a data type for most matrices, and rules that give more bits to tensors whose errors
 * matter more: the output head, attention values, down projections, early and late layers. The
 * mixes have the names and the rules of llama.cpp's quantize tool (Q4_K_M and so on), so that files
 * are comparable. A plan depends on tensor names and shapes only, not on the data. */
#ifndef TERN_QUANT_PLAN_H
#define TERN_QUANT_PLAN_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "format/source.h"

struct plan_mix {
    const char *name;  /* "Q4_K_M" */
    enum dtype type;   /* of most matrices */
    int file_type;     /* GGUF's general.file_type; -1: none is defined */
    const char *about; /* one line of help */
};

const struct plan_mix *plan_mix_at(int i);                /* NULL after the last */
const struct plan_mix *plan_mix_by_name(struct str name); /* any case; NULL: no such mix */

/* A user's rule "PATTERN=TYPE": tensors whose name matches the regular expression get that type. */
struct plan_rule;

struct plan_opt {
    const struct plan_mix *mix;
    bool pure; /* without the rules of the mix: every matrix gets its type */
    bool has_imatrix;
    bool requantize;         /* allow quantizing tensors that are quantized already */
    enum dtype output, embd; /* types of head and embedding; DT_NONE: by the mix */
    struct plan_rule *rules; /* the first that matches wins; owned by the caller */
};

struct plan_item {
    const struct source_tensor *from; /* borrowed from the source */
    enum dtype type;                  /* in the new file */
    const char *why;                  /* reason for the type, a few words; static */
    uint64_t bytes;                   /* in the new file */
    int64_t rows, cols;               /* rows of all matrices together */
};

struct plan {
    struct plan_item *items; /* [n], in the order of the source */
    int n;
    uint64_t bytes, from_bytes; /* tensor data of the new file and of the source */
};

/* Properties of the model that the rules depend on. */
struct plan_model {
    const char *path; /* for errors */
    bool falcon;      /* llama.cpp has other rules for this architecture */
    int n_experts;    /* 0: dense */
    int n_gqa;        /* query heads per KV head */
};

/* Parses text and appends the rule. E_INVALID: not PATTERN=TYPE, or no valid pattern or type. */
int plan_rule_add(struct plan_rule **list, const char *text, struct err *e);
void plan_rules_free(struct plan_rule *list); /* NULL is allowed */

/* Plans the n tensors of list, which have GGUF names. The plan is allocated from a. E_UNSUPPORTED
 * or E_INVALID name the tensor that cannot be converted. */
int plan_make(struct plan *out, struct arena *a, const struct plan_model *m,
              const struct source_tensor *const *list, int n, const struct plan_opt *opt,
              struct err *e);
/* Plans all tensors of a GGUF file. */
int plan_gguf(struct plan *out, struct arena *a, const struct source *src,
              const struct plan_opt *opt, struct err *e);
#endif
