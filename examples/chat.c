/* chat.c - one question, the answer as it is generated.
 *
 *     chat MODEL "question" */
#include <tern.h>

#include <stdio.h>

static int print_answer(tern_request *r)
{
    tern_event ev;
    tern_stats st;

    do {
        if (tern_next(r, &ev) != TERN_OK) return 0;
        fwrite(ev.text, 1, ev.n, stdout);
        fflush(stdout);
    } while (ev.finish == TERN_FINISH_NONE);
    if (tern_request_stats(r, &st) == TERN_OK)
        fprintf(stderr, "\n%d tokens, the first after %.0f ms\n", st.tokens, st.first_token_ms);
    return 1;
}

int main(int argc, char **argv)
{
    tern_model *m = NULL;
    tern_request *r = NULL;
    tern_params p;
    tern_message msg = { "user", argc > 2 ? argv[2] : "Tell me a story about a frog." };
    int ok = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: chat MODEL [QUESTION]\n");
        return 2;
    }
    if (tern_open(&m, argv[1], NULL) == TERN_OK) {
        tern_params_init(&p, m); /* the sampling settings that the model recommends */
        p.max_tokens = 200;
        ok = tern_submit_chat(&r, m, &msg, 1, &p) == TERN_OK && print_answer(r);
    }
    if (!ok) fprintf(stderr, "chat: %s\n", tern_error());
    tern_request_close(r);
    tern_close(m);
    return ok ? 0 : 1;
}
