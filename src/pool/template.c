#include "pool/template.h"

#include "base/file.h"
#include "base/log.h"

static struct str piece(const struct tokenizer *t, int32_t id)
{
    return id >= 0 ? tokenizer_piece(t, id) : (struct str){ 0 };
}

int template_open(struct chat_template **out, const struct tokenizer *t, const char *file,
                  struct err *e)
{
    struct chat_template_source src = { .text = tokenizer_chat_template(t),
                                        .tools = tokenizer_tool_template(t),
                                        .bos = piece(t, tokenizer_bos(t)),
                                        .eos = piece(t, tokenizer_eos(t)),
                                        .unk = piece(t, tokenizer_unk(t)),
                                        .pad = piece(t, tokenizer_pad(t)) };
    bool given = file && *file;
    struct buf text = { 0 };
    struct err why = { 0 };
    int rc = OK;

    *out = NULL;
    if (given) {
        if ((rc = file_read(&text, file, JINJA_MAX_SOURCE, e)) != OK) goto out;
        src.text = buf_str(&text);
        src.tools = STR("");
        src.name = path_base(file);
    }
    if (!src.text.n && src.tools.n) src.text = src.tools;
    if (!src.text.n && !given) goto out;
    rc = chat_template_open(out, &src, given ? e : &why);
    if (rc != OK && !given) {
        log_warn("the model's chat template cannot be used, so its form is guessed: %s", why.msg);
        rc = OK;
    }
out:
    buf_release(&text);
    return rc;
}

int template_encode(const struct chat_template *c, const struct tokenizer *t,
                    const struct chat_template_input *ask, struct ids *out, struct err *e)
{
    struct buf text = { 0 };
    int rc = chat_template_render(c, ask, &text, e);

    if (rc == OK) rc = tokenizer_encode(t, buf_str(&text), 0, out, e);
    buf_release(&text);
    return rc;
}
