/* openai.c - the dialect of /v1/chat/completions and /v1/completions: chunks by reply.h. */
#include "api/call.h"

#include "api/choice.h"
#include "api/dialect.h"
#include "api/fail.h"

static void begin(struct choice *ch)
{
    struct call *c = ch->call;

    if (!c->reply.chat) return;
    respond_begin_chunk(c);
    reply_chunk_role(&c->reply, &c->out, ch->index);
}

static void open_part(struct choice *ch, const struct part *p)
{
    struct call *c = ch->call;

    if (p->kind != PART_CALL) return;
    respond_begin_chunk(c);
    reply_chunk_tool_call(&c->reply, &c->out, ch->index, ch->n_calls - 1, buf_str(&p->id),
                          buf_str(&p->name));
}

/* Logprobs go out with the next text. A failure of theirs stays on record. */
static void add_text(struct choice *ch, struct str text)
{
    struct call *c = ch->call;

    reply_chunk_text(&c->reply, &c->out, ch->index, text, c->p.n_top >= 0 ? &ch->lp : NULL);
    if (!logprobs_failed(&ch->lp)) logprobs_clear(&ch->lp);
}

static void add_part(struct choice *ch, const struct part *p, struct str piece)
{
    struct call *c = ch->call;

    respond_begin_chunk(c);
    switch (p->kind) {
    case PART_TEXT: add_text(ch, piece); break;
    case PART_REASONING: reply_chunk_reasoning(&c->reply, &c->out, ch->index, piece); break;
    case PART_CALL:
        reply_chunk_tool_args(&c->reply, &c->out, ch->index, ch->n_calls - 1, piece);
        break;
    }
}

static void finish(struct choice *ch, const char *reason)
{
    struct call *c = ch->call;

    respond_begin_chunk(c);
    reply_chunk_finish(&c->reply, &c->out, ch->index, reason);
}

/* The usage chunk, and [DONE]. */
static void end(struct call *c, const struct usage *u)
{
    if (c->p.include_usage) {
        respond_begin_chunk(c);
        reply_chunk_usage(&c->reply, &c->out, u);
    }
    respond_begin_chunk(c);
    buf_puts(&c->out, "[DONE]");
}

/* Clients raise an error when they read an "error" event; [DONE] does not follow, since it would say
 * that the answer is complete. */
static void write_failure(struct call *c, const struct fail *f, const char *msg, const char *param)
{
    respond_begin_chunk(c);
    fail_write_body(&c->out, FAIL_OPENAI, f, msg, param, c->who.correlation);
}

static void write_calls(struct buf *out, const struct answer *a)
{
    for (int i = 0; i < a->n; i++) {
        const struct part *p = &a->parts[i];
        if (p->kind != PART_CALL) continue;
        if (out->n) buf_putc(out, ',');
        reply_open_tool_call(out, -1, buf_str(&p->id), buf_str(&p->name));
        reply_close_tool_call(out, buf_str(&p->text));
    }
}

static void write_choice(struct call *c, const struct choice *ch)
{
    struct buf text = { 0 }, reasoning = { 0 }, calls = { 0 };
    struct reply_parts parts = { .text = answer_join(&ch->answer, PART_TEXT, &text),
                                 .reasoning =
                                     answer_join(&ch->answer, PART_REASONING, &reasoning) };

    write_calls(&calls, &ch->answer);
    parts.tool_calls = buf_str(&calls);
    reply_add_choice(&c->reply, &c->out, ch->index, &parts, c->p.n_top >= 0 ? &ch->lp : NULL,
                     choice_finish_reason(ch));
    c->out.failed |= text.failed || reasoning.failed || calls.failed;
    buf_release(&text);
    buf_release(&reasoning);
    buf_release(&calls);
}

static void write_body(struct call *c, const struct usage *u)
{
    reply_open(&c->reply, &c->out);
    for (int i = 0; i < c->n_choices; i++) write_choice(c, c->choices[i]);
    reply_close(&c->out, u);
}

const struct dialect dialect_openai = { .begin = begin,
                                        .open_part = open_part,
                                        .add_part = add_part,
                                        .finish = finish,
                                        .end = end,
                                        .fail = write_failure,
                                        .write_body = write_body };
