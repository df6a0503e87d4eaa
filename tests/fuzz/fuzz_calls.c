/* Fuzz target: an arbitrary schema of a tool, compiled into a grammar of forced calls in the
 * format of each model family.
 *
 * A schema is refused with a message, or the shortest text of the grammar is one call when it is
 * parsed back, with arguments that match the schema. */
#include "toolcall/toolforce.h"
#include "toolcall/toolparse.h"
#include "base/mem.h"
#include "bytes.h"
#include "work.h"

static const char *const templates[] = {
    "<tool_call>",
    "<tool_call> <arg_key>",
    "<function= <parameter=",
    "<invoke name= minimax:tool_call",
    "<|tool_call_start|>",
    "<|start|> <|channel|>",
    "<|START_ACTION|>",
    "<|tools_prefix|>",
    "<|tool_call>call:",
    "<start_function_call>",
    "func_name1(",
    "DSML invoke name=",
    "tool_call hy_eos",
    "<|open|> <|close|>",
    "<function name= <param name=",
    "<｜tool▁call▁begin｜> <｜tool▁sep｜> ```json",
    "[TOOL_CALLS] [ARGS]",
};

/* Writes the shortest text of the grammar; false: it is too long. */
static bool make_shortest(const struct pda *a, struct buf *text)
{
    struct matcher_cache *d = open_cache(a, byte_vocab());
    struct matcher x;
    bool over;

    begin_text(&x, d, false);
    while (matcher_min_bytes(&x) > 0 && text->n < 5000) {
        const uint64_t *mask = matcher_closing_mask(&x, matcher_min_bytes(&x) - 1);
        int32_t id = 255;
        while (id >= 0 && !(mask[id / 64] >> (id % 64) & 1)) id--;
        if (id < 0 || matcher_accept(&x, id) != OK)
            __builtin_trap(); /* every state must have a way to the end */
        buf_putc(text, (char)id);
    }
    over = matcher_min_bytes(&x) == 0;
    matcher_end(&x);
    matcher_cache_close(d);
    return over;
}

struct seen {
    struct buf args;
    int n;
};

static void on_text(void *arg, struct str text)
{
    (void)arg;
    if (text.n) __builtin_trap(); /* a forced text contains only the call */
}

static void on_call(void *arg, struct str name, struct str id)
{
    (void)id;
    ((struct seen *)arg)->n++;
    if (!str_is(name, "f")) __builtin_trap();
}

static void on_args(void *arg, struct str piece)
{
    buf_put_str(&((struct seen *)arg)->args, piece);
}

static void read_back(struct str template, const json_t *tools, const struct buf *text)
{
    struct seen seen = { 0 };
    const struct toolparse_out out = { on_text, on_text, on_call, on_args, &seen };
    struct toolparse p;
    bool failed = false;

    toolparse_init(&p, toolfamily_find(template), NULL, tools, STR(""), &out);
    toolparse_push(&p, buf_str(text));
    toolparse_end(&p);
    if (toolparse_check(&p, NULL) != OK) __builtin_trap();
    if (seen.n != 1 || p.cut || !toolcall_is_json(buf_str(&seen.args), &failed)) __builtin_trap();
    toolparse_release(&p);
    buf_release(&seen.args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str template =
        str_c(templates[n ? data[0] % (sizeof templates / sizeof *templates) : 0]);
    json_t *schema = n > 1 ? json_loadb((const char *)data + 1, n - 1, 0, NULL) : NULL, *tools;
    struct toolforce f = {
        .calls = toolfamily_find(template), .template = template, .prompt = STR(""), .max = 1
    };
    struct buf text = { 0 }, call = { 0 };
    struct grammar_spec spec;
    struct grammar *g = NULL;
    struct err e = { 0 };
    struct budget b = { .max_steps = WORK_STEPS, .max_bytes = WORK_BYTES };
    struct grammar_env env = { .budget = &b };
    struct work w;
    int rc;

    if (!json_is_object(schema)) {
        json_decref(schema);
        return 0;
    }
    f.tools = tools = json_pack("[{s:s, s:{s:s, s:o}}]", "type", "function", "function", "name",
                                "f", "parameters", schema);
    if (toolforce_make_spec(&f, &text, &spec, &e) != OK) __builtin_trap();
    w = work_begin();
    rc = grammar_compile(&g, &spec, &env, &e);
    work_end(&w, &b);
    if (rc == OK && make_shortest(grammar_pda(g), &call)) read_back(template, tools, &call);
    if (rc != OK && (rc != E_INVALID || !e.msg[0])) __builtin_trap();
    grammar_unref(g);
    buf_release(&text);
    buf_release(&call);
    json_decref(tools);
    return 0;
}
