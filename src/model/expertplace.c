/* expertplace.c - see expertplace.h. */
#include "model/expertplace.h"

#include "base/log.h"
#include "model/weightlist.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <stdio.h>

enum { MAX_RULES = 64, MATCH_LIMIT = 1 << 20 };

/* Where the experts of a layer are to lie. */
enum target { TARGET_NONE, TARGET_OWN, TARGET_CPU };

struct rule {
    struct str pattern, device;
    pcre2_code *code;
    enum target to;
    int n_found; /* tensors that the pattern matches */
};

struct rules {
    struct rule at[MAX_RULES];
    int n;
    pcre2_match_data *data;
    pcre2_match_context *ctx;
};

/* ---- the text ---- */

/* "CUDA0" and "cuda:0" are the same device, and "cuda" is the first. */
static bool is_same_device(struct str a, struct str b)
{
    char text[2][16] = { { 0 } };
    struct str in[2] = { a, b };

    for (int k = 0; k < 2; k++) {
        size_t n = 0;
        for (size_t i = 0; i < in[k].n; i++) {
            if (in[k].p[i] == ':') continue;
            if (n + 2 >= sizeof text[k]) return false;
            text[k][n++] = (char)tolower((unsigned char)in[k].p[i]);
        }
        if (strcmp(text[k], "cuda") == 0) text[k][n] = '0';
    }
    return strcmp(text[0], text[1]) == 0;
}

static int find_target(struct rule *r, const struct backend_opt *o, struct err *e)
{
    struct str own = str_c(o->device ? o->device : "cpu");
    bool cpu = is_same_device(own, STR("cpu"));

    if (is_same_device(r->device, STR("cpu"))) r->to = cpu ? TARGET_OWN : TARGET_CPU;
    else if (is_same_device(r->device, own) || (!cpu && is_same_device(r->device, STR("gpu"))))
        r->to = TARGET_OWN;
    else
        return err_set(e, E_INVALID,
                       "place: '%.*s=%.*s': the device must be cpu or the one that computes, %.*s",
                       STR_ARG(r->pattern), STR_ARG(r->device), STR_ARG(own));
    return OK;
}

static int compile_rule(struct rule *r, struct err *e)
{
    char why[160];
    PCRE2_SIZE at;
    int code;

    r->code = pcre2_compile((PCRE2_SPTR)r->pattern.p, r->pattern.n, 0, &code, &at, NULL);
    if (r->code) return OK;
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return err_set(e, E_INVALID, "place: the pattern '%.*s' is wrong at character %zu: %s",
                   STR_ARG(r->pattern), (size_t)at + 1, why);
}

/* One "PATTERN=DEVICE"; the last '=' divides it. */
static int read_rule(struct rules *all, struct str text, const struct backend_opt *o, struct err *e)
{
    struct rule *r = &all->at[all->n];
    size_t at = text.n;
    int rc;

    if (all->n == MAX_RULES)
        return err_set(e, E_INVALID, "place: more than %d patterns", MAX_RULES);
    while (at > 0 && text.p[at - 1] != '=') at--;
    if (at < 2 || at == text.n)
        return err_set(e, E_INVALID, "place: '%.*s' is not PATTERN=DEVICE", STR_ARG(text));
    *r = (struct rule){ .pattern = str_trim(str_take(text, at - 1)),
                        .device = str_trim(str_skip(text, at)) };
    if ((rc = find_target(r, o, e)) != OK || (rc = compile_rule(r, e)) != OK) return rc;
    all->n++;
    return OK;
}

static void close_rules(struct rules *all)
{
    for (int i = 0; i < all->n; i++) pcre2_code_free(all->at[i].code);
    pcre2_match_data_free(all->data);
    pcre2_match_context_free(all->ctx);
}

static int open_rules(struct rules *all, const struct backend_opt *o, struct err *e)
{
    struct str rest = str_c(o->place ? o->place : "");
    int rc = OK;

    *all = (struct rules){ .data = pcre2_match_data_create(1, NULL),
                           .ctx = pcre2_match_context_create(NULL) };
    if (!all->data || !all->ctx) {
        close_rules(all);
        return err_nomem(e, "the patterns of place");
    }
    pcre2_set_match_limit(all->ctx, MATCH_LIMIT);
    while (rest.n && rc == OK) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        rc = read_rule(all, one, o, e);
        rest = str_skip(rest, one.n + 1);
    }
    if (rc != OK) close_rules(all);
    return rc;
}

static bool text_matches(const struct rules *all, const struct rule *r, struct str name)
{
    return name.n &&
           pcre2_match(r->code, (PCRE2_SPTR)name.p, name.n, 0, 0, all->data, all->ctx) >= 0;
}

/* ---- the options ---- */

bool expert_place_is_given(const struct backend_opt *o)
{
    return o->cpu_moe || o->n_cpu_moe != 0 || (o->place && *o->place);
}

int expert_place_check(const struct backend_opt *o, struct err *e)
{
    struct rules all;
    int rc;

    if (o->n_cpu_moe < 0)
        return err_set(e, E_INVALID, "n-cpu-moe is %d: it must be 0 (none) or more", o->n_cpu_moe);
    if (o->vram_only && (o->cpu_moe || o->n_cpu_moe > 0))
        return err_set(e, E_INVALID, "vram-only wants all of the model on a GPU, but %s does not",
                       o->cpu_moe ? "cpu-moe" : "n-cpu-moe");
    if ((rc = open_rules(&all, o, e)) != OK) return rc;
    for (int i = 0; i < all.n && rc == OK; i++)
        if (o->vram_only && all.at[i].to == TARGET_CPU)
            rc = err_set(e, E_INVALID,
                         "vram-only wants all of the model on a GPU, but place does "
                         "not");
    close_rules(&all);
    return rc;
}

/* ---- a model ---- */

/* Does the pattern match the file's name of the tensor, or for experts llama.cpp's, which patterns are
 * mostly written for? A packed tensor has two of these. */
static bool rule_matches(const struct rules *all, const struct rule *r, const struct weight_item *w)
{
    static const char *const names[] = { "gate", "up", "down" };
    int first = weight_expert_matrix(w), last = first + (w->r->kind == ROW_GATE_UP);
    bool found = text_matches(all, r, w->t->name);
    char usual[64];

    for (int i = first; first >= 0 && i <= last && !found; i++) {
        snprintf(usual, sizeof usual, "blk.%d.ffn_%s_exps.%s", w->layer, names[i],
                 row_is_vector(w->r) ? "bias" : "weight");
        found = text_matches(all, r, str_c(usual));
    }
    return found;
}

/* The first rule that matches the item places it. */
static int place_item(struct rules *all, enum target *to, const struct weight_item *w,
                      struct err *e)
{
    bool expert = weight_expert_matrix(w) >= 0;
    struct rule *first = NULL;

    for (struct rule *r = all->at; r < all->at + all->n; r++) {
        if (!rule_matches(all, r, w)) continue;
        r->n_found++;
        if (!first) first = r;
    }
    if (!first) return OK;
    if (!expert && first->to == TARGET_CPU)
        return err_set(e, E_INVALID,
                       "place: the pattern '%.*s' matches %.*s, which stays with its layer: only "
                       "routed experts can be placed; gpu-layers moves whole layers",
                       STR_ARG(first->pattern), STR_ARG(w->t->name));
    if (!expert) return OK;
    if (to[w->layer] != TARGET_NONE && to[w->layer] != first->to)
        return err_set(e, E_INVALID,
                       "place: the experts of layer %d would lie on two devices: %.*s by '%.*s'",
                       w->layer, STR_ARG(w->t->name), STR_ARG(first->pattern));
    to[w->layer] = first->to;
    return OK;
}

/* An error, or with place_loose a line of the log. */
static int refuse(const struct backend_opt *o, const struct err *why, struct err *e)
{
    if (o->place_loose) {
        log_info("%s", why->msg);
        return OK;
    }
    if (e) *e = *why;
    return why->code;
}

static int place_by_rules(enum target *to, const struct weight_list *weights,
                          const struct backend_opt *o, struct err *e)
{
    struct rules all;
    struct err why;
    int rc = open_rules(&all, o, e);

    if (rc != OK) return rc;
    for (int i = 0; i < weights->n && rc == OK; i++)
        rc = place_item(&all, to, &weights->items[i], e);
    for (int i = 0; i < all.n && rc == OK; i++) {
        if (all.at[i].n_found) continue;
        err_set(&why, E_INVALID, "place: the pattern '%.*s' matches no tensor of the model",
                STR_ARG(all.at[i].pattern));
        rc = refuse(o, &why, e);
    }
    close_rules(&all);
    return rc;
}

static int first_with_experts(const struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].moe) return l;
    return -1;
}

/* cpu_moe and n_cpu_moe can be done. */
static int check_model(const struct hparams *hp, const struct backend_opt *o, struct err *e)
{
    int first = first_with_experts(hp);

    if (first < 0)
        return err_set(e, E_INVALID, "%s: this %s model has no experts",
                       o->cpu_moe         ? "cpu-moe"
                       : o->n_cpu_moe > 0 ? "n-cpu-moe"
                                          : "place",
                       hp->arch);
    if (o->n_cpu_moe > hp->n_layers)
        return err_set(e, E_INVALID, "n-cpu-moe is %d, but the model has %d layers", o->n_cpu_moe,
                       hp->n_layers);
    if (o->n_cpu_moe > 0 && o->n_cpu_moe <= first)
        return err_set(e, E_INVALID,
                       "n-cpu-moe is %d, but the first layer with experts is number %d",
                       o->n_cpu_moe, first + 1);
    return OK;
}

int expert_place_find(const bool **out, struct arena *a, const struct hparams *hp,
                      const struct weight_list *weights, const struct backend_opt *o, struct err *e)
{
    bool cpu = !o->device || strcmp(o->device, "cpu") == 0, *apart;
    enum target *to;
    struct err why;
    int rc, n = 0;

    *out = NULL;
    if (!expert_place_is_given(o)) return OK;
    to = arena_array(a, (size_t)hp->n_layers, sizeof *to);
    apart = arena_array(a, (size_t)hp->n_layers, sizeof *apart);
    if (!to || !apart) return err_nomem(e, "the places of experts");
    if ((rc = expert_place_check(o, e)) != OK) return rc;
    if (check_model(hp, o, &why) != OK) return refuse(o, &why, e);
    if ((rc = place_by_rules(to, weights, o, e)) != OK) return rc;
    for (int l = 0; l < hp->n_layers; l++) {
        bool wanted =
            to[l] == TARGET_CPU || (to[l] == TARGET_NONE && (o->cpu_moe || l < o->n_cpu_moe));
        apart[l] = hp->layers[l].moe && wanted;
        n += apart[l];
    }
    if (n && !cpu) *out = apart;
    return OK;
}

unsigned expert_place_kinds(const struct expert_place *x, const struct hparams *hp,
                            const struct backend *be, int first, int end)
{
    unsigned kinds = 0;

    if (!x->be) return EXPERTS_HERE;
    for (int l = first; l < end; l++)
        if (hp->layers[l].moe) kinds |= experts_lie_apart(x, be, l) ? EXPERTS_APART : EXPERTS_HERE;
    return kinds;
}
