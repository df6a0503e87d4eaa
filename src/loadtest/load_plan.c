#include "loadtest/load_plan.h"

#include "base/jsonw.h"

/* Short and common English words: most vocabularies have each of them, with its leading space, as
 * one token. */
static const char *const words[] = {
    "time",    "year",    "people",   "way",     "day",    "man",     "thing",   "woman",
    "life",    "child",   "world",    "school",  "state",  "family",  "student", "group",
    "country", "problem", "hand",     "part",    "place",  "case",    "week",    "company",
    "system",  "program", "question", "work",    "number", "night",   "point",   "home",
    "water",   "room",    "mother",   "area",    "money",  "story",   "fact",    "month",
    "lot",     "right",   "study",    "book",    "eye",    "job",     "word",    "business",
    "issue",   "side",    "kind",     "head",    "house",  "service", "friend",  "father",
    "power",   "hour",    "game",     "line",    "end",    "member",  "law",     "car",
    "city",    "name",    "team",     "minute",  "idea",   "body",    "back",    "parent",
    "face",    "others",  "level",    "office",  "door",   "health",  "person",  "art",
    "war",     "history", "party",    "result",  "change", "morning", "reason",  "girl",
    "guy",     "moment",  "air",      "teacher", "force",  "order",   "food",    "plan",
    "light",   "sun",     "river",    "tree",    "bird",   "boat",    "road",    "hill",
    "stone",   "field",   "garden",   "wind",    "the",    "of",      "and",     "to",
    "in",      "is",      "you",      "that",    "it",     "he",      "was",     "for",
    "on",      "are",     "as",       "with",    "his",    "they",    "at",      "be",
    "this",    "have",    "from",     "or",      "one",    "had",     "by",      "not",
    "but",     "what",    "all",      "were",    "we",     "when",    "your",    "can",
    "said",    "there",   "use",      "an",      "each",   "which",   "she",     "do",
    "how",     "their",   "if",       "will",    "up",     "other",   "about",   "out",
    "many",    "then",    "them",     "these",   "so",     "some",    "her",     "would",
    "make",    "like",    "him",      "into",    "has",    "look",    "two",     "more",
    "write",   "go",      "see",      "no",      "could",  "my",      "than",    "first",
    "been",    "call",    "who",      "its",     "now",    "find",    "long",    "down",
    "did",     "get",     "come",     "made",    "may",    "over",    "new",     "sound",
    "take",    "only",    "little"
};

#define N_WORDS (sizeof words / sizeof *words)

void load_plan_words(uint64_t seed, int n_words, struct buf *out)
{
    struct rng r;

    rng_seed(&r, seed);
    for (int i = 0; i < n_words; i++) {
        if (i) buf_putc(out, ' ');
        buf_puts(out, words[rng_u64(&r) % N_WORDS]);
    }
}

/* Prompts are words, lengths are tokens: tokens_per_word is measured before the run. */
static int count_words(const struct load_plan *p, int n_tokens)
{
    double n = n_tokens / (p->tokens_per_word > 0 ? p->tokens_per_word : 1);
    return n < 1 ? 1 : (int)(n + 0.5);
}

/* Random ids have the exact number of tokens, whatever the tokenizer. */
static void put_random_ids(struct jsonw *w, const struct load_plan *p, uint64_t seed, int n)
{
    struct rng r;

    rng_seed(&r, seed);
    for (int i = 0; i < n; i++)
        jsonw_int(w, p->id_low + (int64_t)(rng_u64(&r) % (uint64_t)(p->id_high - p->id_low + 1)));
}

/* Seeds of the shared prefix and of a request's own part of the prompt. The constant keeps them
 * apart. */
static uint64_t shared_prefix_seed(const struct load_plan *p)
{
    return (p->shared_seed ? p->shared_seed : p->seed) ^ 0x5eed000000000000u;
}
static uint64_t request_seed(const struct load_plan *p, int64_t index)
{
    return p->seed * 1000003u + (uint64_t)index + 1;
}

/* "prompt" of /v1/completions: ids, or the shared prefix and the request's own words. */
static void put_prompt(struct jsonw *w, const struct load_plan *p, const struct load_request *q)
{
    struct buf text = { 0 };

    jsonw_key(w, "prompt");
    if (p->id_high) {
        jsonw_arr(w);
        if (q->shared) put_random_ids(w, p, shared_prefix_seed(p), p->n_shared);
        put_random_ids(w, p, request_seed(p, q->index), q->n_prompt);
        jsonw_end(w);
        return;
    }
    if (q->shared) {
        load_plan_words(shared_prefix_seed(p), count_words(p, p->n_shared), &text);
        buf_putc(&text, ' ');
    }
    load_plan_words(request_seed(p, q->index), count_words(p, q->n_prompt), &text);
    jsonw_str(w, buf_str(&text));
    w->out->failed |= text.failed;
    buf_release(&text);
}

/* One chat message of about n_tokens tokens. */
static void put_message(struct jsonw *w, const struct load_plan *p, const char *role, uint64_t seed,
                        int n_tokens)
{
    struct buf text = { 0 };

    load_plan_words(seed, count_words(p, n_tokens), &text);
    jsonw_obj(w);
    jsonw_key(w, "role"), jsonw_str(w, str_c(role));
    jsonw_key(w, "content"), jsonw_str(w, buf_str(&text));
    jsonw_end(w);
    w->out->failed |= text.failed;
    buf_release(&text);
}

/* ignore_eos is an extension that tern, vLLM and llama.cpp know; others ignore it. */
static void put_body(const struct load_plan *p, struct load_request *q)
{
    struct jsonw w = { .out = &q->body };

    buf_clear(&q->body);
    jsonw_obj(&w);
    if (*p->model) jsonw_key(&w, "model"), jsonw_str(&w, str_c(p->model));
    if (p->completions) {
        put_prompt(&w, p, q);
    } else {
        jsonw_key(&w, "messages"), jsonw_arr(&w);
        if (q->shared) put_message(&w, p, "system", shared_prefix_seed(p), p->n_shared);
        put_message(&w, p, "user", request_seed(p, q->index), q->n_prompt);
        jsonw_end(&w);
    }
    jsonw_key(&w, "max_tokens"), jsonw_int(&w, q->n_output);
    if (p->temperature >= 0) jsonw_key(&w, "temperature"), jsonw_num(&w, p->temperature);
    jsonw_key(&w, "seed"), jsonw_int(&w, (int64_t)(request_seed(p, q->index) & 0x7fffffff));
    if (!p->stop_at_eos) jsonw_key(&w, "ignore_eos"), jsonw_bool(&w, true);
    if (!p->no_stream) {
        jsonw_key(&w, "stream"), jsonw_bool(&w, true);
        jsonw_key(&w, "stream_options"), jsonw_obj(&w);
        jsonw_key(&w, "include_usage"), jsonw_bool(&w, true);
        jsonw_end(&w);
    }
    jsonw_end(&w);
}

/* Decides whether and when the client aborts: a third at once, a third within 100 ms (queued or in
 * prefill), a third between two tokens. */
static void plan_abort(const struct load_plan *p, struct load_request *q, struct rng *r)
{
    double u = rng_unit(r), where = rng_unit(r), at = rng_unit(r);
    bool reset = rng_unit(r) < 0.5;

    q->abort = ABORT_NONE;
    q->abort_events = 0;
    q->abort_ms = 0;
    if (u < p->cancel) q->abort = ABORT_CANCEL;
    else if (u < p->cancel + p->disconnect) q->abort = reset ? ABORT_RESET : ABORT_CLOSE;
    if (q->abort == ABORT_NONE || where < 1.0 / 3) return;
    if (where < 2.0 / 3 || p->no_stream) q->abort_ms = 100 * at;
    else q->abort_events = 1 + (int)(at * (q->n_output - 1));
}

int load_plan_make(const struct load_plan *p, int64_t index, struct load_request *out,
                   struct err *e)
{
    struct rng r;

    rng_seed(&r, request_seed(p, index) ^ 0xa5a5a5a5u);
    out->index = index;
    out->n_prompt = load_dist_sample(&p->prompt, &r);
    out->n_output = load_dist_sample(&p->output, &r);
    out->shared = p->n_shared > 0 && rng_unit(&r) < p->share;
    plan_abort(p, out, &r);
    put_body(p, out);
    return buf_check(&out->body, e);
}
