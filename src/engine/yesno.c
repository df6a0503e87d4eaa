/* yesno.c - finds the tokens of the answer, and makes the score of their logits. */
#include "engine/yesno.h"

#include "base/ids.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "token/tokenizer.h"

#include <math.h>
#include <stdio.h>

/* The id of a text that is one token; -1: it is several, or there is no memory. */
static int32_t find_word(const struct tokenizer *t, const char *word)
{
    struct ids ids = { 0 };
    int32_t id = -1;

    if (tokenizer_encode(t, str_c(word), ENCODE_PLAIN, &ids, NULL) == OK && ids.n == 1 &&
        ids.p[0] != tokenizer_unk(t))
        id = ids.p[0];
    ids_release(&ids);
    return id;
}

static bool has_logit_score(const struct source *src)
{
    struct str type;
    char key[64];

    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "modules:%d.type", i);
        if (!source_str(src, key, &type)) return false;
        if (str_ends(type, STR(".LogitScore"))) return true;
    }
    return false;
}

/* The ids that sentence-transformers has in 1_LogitScore/config.json; without false_token_id the
 * score is the logit of the other. */
static void read_logit_score(struct yesno *y, const struct source *src, int n_vocab)
{
    int64_t yes = -1, no = -1;
    bool both = source_i64(src, "logit_score:false_token_id", &no);

    source_i64(src, "logit_score:true_token_id", &yes);
    if (yes < 0 || yes >= n_vocab || (both && (no < 0 || no >= n_vocab))) {
        snprintf(
            y->why, sizeof y->why,
            "1_LogitScore/config.json: true_token_id is %lld, false_token_id %lld: ids are from "
            "0 to %d",
            (long long)yes, (long long)no, n_vocab - 1);
        return;
    }
    y->ids[0] = (int32_t)yes;
    y->ids[1] = (int32_t)no;
    y->n = both ? 2 : 1;
}

static void find_words(struct yesno *y, const struct tokenizer *t, int n_vocab)
{
    static const char *const words[2] = { "yes", "no" };

    if (!t) snprintf(y->why, sizeof y->why, "it has no tokenizer");
    for (int i = 0; i < 2 && !y->why[0]; i++) {
        y->ids[i] = find_word(t, words[i]);
        if (y->ids[i] < 0 || y->ids[i] >= n_vocab)
            snprintf(y->why, sizeof y->why, "its vocabulary has no token \"%s\"", words[i]);
    }
    if (!y->why[0]) y->n = 2;
}

void yesno_find(struct yesno *out, const struct loadplan *plan, const struct tokenizer *t,
                bool wanted)
{
    const struct model_facts *f = &plan->facts;

    *out = (struct yesno){ .ids = { -1, -1 } };
    if (f->task == TASK_CLASSIFY && !f->bidirectional && f->n_labels == 2 &&
        str_is(f->labels[0], "yes") && str_is(f->labels[1], "no")) {
        out->n = 2;
        out->by_head = true;
    }
    if (f->task != TASK_GENERATE) return;
    if (has_logit_score(plan->source)) read_logit_score(out, plan->source, f->n_vocab);
    else if (wanted) find_words(out, t, f->n_vocab);
}

double yesno_score(const struct yesno *y, const float *vec)
{
    return y->n == 2 ? 1 / (1 + exp((double)vec[1] - (double)vec[0])) : (double)vec[0];
}
