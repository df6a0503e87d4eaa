/* lead.c - the rule "answer" is put before the root: reasoning? lead root.
 *
 * Reasoning is free text up to its closing mark, so a model is not constrained while it reasons. */
#include "grammar/lead.h"

#include "grammar/specials.h"
#include "grammar/dfa.h"

/* Models write up to two newlines between reasoning and answer; some write spaces. */
static struct rule_node *make_white_space(struct rules *g)
{
    struct charset space = { 0 };

    charset_add(&space, &g->arena, '\n', '\n');
    charset_add(&space, &g->arena, ' ', ' ');
    return rules_repeat(g, rules_class(g, space), 0, 4);
}

/* Reasoning is any text up to its closing mark. */
static int make_reasoning(struct rules *g, const struct grammar_spec *spec,
                          const struct specials *s, struct rule_node **out, struct err *e)
{
    struct rule_node *text, *close, *after, *open;
    int rc = dfa_text_without(&text, g, str_c(spec->reasoning_close), e);

    if (rc != OK) return rc;
    close = specials_text(s, g, str_c(spec->reasoning_close), NULL, NULL);
    after = spec->reasoning_after ? specials_text(s, g, str_c(spec->reasoning_after), NULL, NULL)
                                  : make_white_space(g);
    *out = RULES_SEQ(g, text, close, after);
    if (spec->reasoning == REASONING_OPTIONAL) {
        open = specials_text(s, g, str_c(spec->reasoning_open), NULL, NULL);
        *out = rules_repeat(g, RULES_SEQ(g, open, *out), 0, 1);
    }
    return OK;
}

int lead_add(struct rules *g, const struct grammar_spec *spec, struct err *e)
{
    struct rule_node *reasoning = NULL, *lead;
    struct specials s;
    int rc;

    if (spec->reasoning == REASONING_NONE && !spec->lead) return OK;
    if ((rc = specials_init(&s, g->env, e)) != OK) return rc;
    if (spec->reasoning != REASONING_NONE) rc = make_reasoning(g, spec, &s, &reasoning, e);
    if (rc == OK) {
        lead = specials_text(&s, g, str_c(spec->lead ? spec->lead : ""), NULL, NULL);
        g->root = rules_add(g, STR("answer"), RULES_SEQ(g, reasoning, lead, rules_ref(g, g->root)));
    }
    specials_release(&s);
    return rc;
}
