/* specials.c - a linear list: a vocabulary has some hundred special tokens, and texts with their
 * names are short. */
#include "grammar/specials.h"

#include "base/mem.h"
#include "token/tokenizer.h"

static bool is_end(const struct grammar_env *env, int32_t id)
{
    for (int i = 0; i < env->n_ends; i++)
        if (env->ends[i] == id) return true;
    return false;
}

/* One pass over the vocabulary. */
int specials_init(struct specials *s, const struct grammar_env *env, struct err *e)
{
    const struct tokenizer *tok = env ? env->tok : NULL;

    *s = (struct specials){ 0 };
    for (int32_t id = 0; tok && id < tokenizer_n(tok); id++) {
        if (!tokenizer_is_special(tok, id) || !tokenizer_piece(tok, id).n || is_end(env, id))
            continue;
        if (!mem_ensure(s->list, s->cap, s->n + 1)) {
            specials_release(s);
            return err_nomem(e, "the special tokens of the vocabulary");
        }
        s->list[s->n++] = (struct special_token){ tokenizer_piece(tok, id), id };
    }
    return OK;
}

void specials_release(struct specials *s)
{
    mem_free(s->list);
    *s = (struct specials){ 0 };
}

const struct special_token *specials_at(const struct specials *s, struct str text)
{
    const struct special_token *best = NULL;

    for (int i = 0; i < s->n; i++)
        if (str_starts(text, s->list[i].name) && (!best || s->list[i].name.n > best->name.n))
            best = &s->list[i];
    return best;
}

static void add_literal(struct rules *g, struct rule_node *seq, struct str text)
{
    if (text.n) rules_add_child(g, seq, rules_literal(g, text));
}

/* Special tokens win over placeholders, and of several the longest one. Literal text between them
 * is one node. */
struct rule_node *specials_text(const struct specials *s, struct rules *g, struct str text,
                                specials_placeholder_fn *placeholder, void *arg)
{
    struct rule_node *seq = rules_node(g, NODE_SEQ), *n;
    size_t from = 0, len = 0;

    for (size_t i = 0; i < text.n && budget_step(g->budget, 1 + (uint64_t)s->n / 4);) {
        struct str rest = str_skip(text, i);
        const struct special_token *t = specials_at(s, rest);
        n = t ? rules_token(g, t->id) : placeholder ? placeholder(arg, rest, &len) : NULL;
        if (!n) {
            i++;
            continue;
        }
        add_literal(g, seq, str_of(text.p + from, i - from));
        rules_add_child(g, seq, n);
        from = i += t ? t->name.n : len;
    }
    if (text.n) add_literal(g, seq, str_skip(text, from));
    return seq;
}
