/* plan.h - which tensor gets which dtype, and why.
 *
 * A mix is a number format for most matrices and rules for those that matter more: the head,
 * what goes into the residual, values of attention, early and late layers. The mixes are those
 * people know by name, with the choices they know. A plan is made of names and shapes alone. */
#ifndef TERN_QUANT_PLAN_H
#define TERN_QUANT_PLAN_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "format/source.h"

struct plan_mix {
    const char *name;  /* "Q4_K_M" */
    enum dtype type;   /* of most matrices */
    int file_type;     /* GGUF's number for it; -1: it has none */
    const char *about; /* one line */
};

const struct plan_mix *plan_mix_at(int i);                /* NULL past the last */
const struct plan_mix *plan_mix_by_name(struct str name); /* any case; NULL: there is none */

/* "ffn_down=q6_k": tensors in whose name the pattern (PCRE2) is found get that type. */
struct plan_rule;

struct plan_opt {
    const struct plan_mix *mix;
    bool pure; /* no rules: every matrix in the mix's type */
    bool has_imatrix;
    bool requantize;         /* quantized tensors are taken apart again */
    enum dtype output, embd; /* DT_NONE: as the mix has it */
    struct plan_rule *rules; /* the first that fits counts */
};

struct plan_item {
    const struct source_tensor *from;
    enum dtype type;
    const char *why; /* a few words */
    uint64_t bytes;  /* in the new file */
    int64_t rows, cols;
};

struct plan {
    struct plan_item *items; /* in the order of the source */
    int n;
    uint64_t bytes, from_bytes;
};

/* What the choices look at besides names and shapes. */
struct plan_model {
    const char *path; /* for errors */
    bool falcon;
    int n_experts, n_gqa; /* queries that share a key */
};

int plan_rule_add(struct plan_rule **list, const char *text, struct err *e);
void plan_rules_free(struct plan_rule *list); /* NULL is fine */

/* Of tensors by their GGUF names; in a's memory. What cannot be done is E_UNSUPPORTED or E_INVALID,
 * by name.
 */
int plan_make(struct plan *out, struct arena *a, const struct plan_model *m,
              const struct source_tensor *const *list, int n, const struct plan_opt *opt,
              struct err *e);
/* Of all tensors of a GGUF file. */
int plan_gguf(struct plan *out, struct arena *a, const struct source *src,
              const struct plan_opt *opt, struct err *e);
#endif
