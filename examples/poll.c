/* poll.c - several prompts at once, in one thread: the requests run as one batch, and poll() says
 * which of them have text. A program with an event loop adds the descriptors to it instead.
 *
 *     poll MODEL "prompt" "prompt" ... */
#include <tern.h>

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { MAX = 16 };

struct answer {
    tern_request *r;
    char text[4096];
    size_t n;
};

/* Takes the events that are there. 0: the request is over. */
static int take(struct answer *a)
{
    tern_event ev;
    int rc;

    while ((rc = tern_next_wait(a->r, &ev, 0)) == TERN_OK) {
        size_t n = ev.n < sizeof a->text - a->n ? ev.n : sizeof a->text - a->n;

        memcpy(a->text + a->n, ev.text, n);
        a->n += n;
        if (ev.finish != TERN_FINISH_NONE) return 0;
    }
    if (rc == TERN_AGAIN) return 1;
    fprintf(stderr, "poll: %s\n", tern_error());
    return 0;
}

static void run(struct answer *a, int n)
{
    struct pollfd fds[MAX];
    int left = n;

    for (int i = 0; i < n; i++) {
        fds[i].fd = tern_fd(a[i].r);
        fds[i].events = POLLIN;
    }
    while (left > 0 && poll(fds, (nfds_t)n, -1) >= 0)
        for (int i = 0; i < n; i++)
            if (fds[i].fd >= 0 && fds[i].revents && !take(&a[i])) {
                fds[i].fd = -1; /* poll ignores it */
                left--;
            }
}

int main(int argc, char **argv)
{
    static struct answer a[MAX];
    tern_model *m = NULL;
    tern_params p;
    int n = 0, failed = 0;

    if (argc < 3 || argc > MAX + 2) {
        fprintf(stderr, "usage: poll MODEL PROMPT...    (up to %d)\n", MAX);
        return 2;
    }
    if (tern_open(&m, argv[1], NULL) != TERN_OK) {
        fprintf(stderr, "poll: %s\n", tern_error());
        return 1;
    }
    tern_params_init(&p, m);
    p.max_tokens = 40;
    p.raw = 1; /* continue the text */
    for (; n < argc - 2 && !failed; n += !failed)
        failed = tern_submit(&a[n].r, m, argv[n + 2], strlen(argv[n + 2]), &p) != TERN_OK;
    if (failed) fprintf(stderr, "poll: %s\n", tern_error());
    run(a, n);
    for (int i = 0; i < n; i++) {
        printf("%s%.*s\n\n", argv[i + 2], (int)a[i].n, a[i].text);
        tern_request_close(a[i].r);
    }
    tern_close(m);
    return failed;
}
