/* callback.c - the library calls for each piece of text; the main thread only waits for the end.
 *
 * Callbacks run on a thread of the library, one at a time for a model. What they share with other
 * threads is protected by the program: here by a mutex.
 *
 *     callback MODEL "prompt" "prompt" ... */
#include <tern.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct progress {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int left; /* requests that are not over */
    int failed;
};

static void on_event(void *arg, tern_request *r, int rc, const tern_event *ev)
{
    struct progress *p = (struct progress *)arg;

    fwrite(ev->text, 1, ev->n, stdout);
    if (rc == TERN_OK && ev->finish == TERN_FINISH_NONE) return;
    puts("\n--");
    tern_request_close(r); /* allowed here: it is the last call for r */
    pthread_mutex_lock(&p->lock);
    if (rc != TERN_OK) p->failed = 1;
    p->left--;
    pthread_cond_signal(&p->news);
    pthread_mutex_unlock(&p->lock);
}

/* 1: the callback has the request now. */
static int start(tern_model *m, const char *prompt, const tern_params *params, struct progress *p)
{
    tern_request *r = NULL;

    if (tern_submit(&r, m, prompt, strlen(prompt), params) == TERN_OK &&
        tern_on_event(r, on_event, p) == TERN_OK)
        return 1;
    fprintf(stderr, "callback: %s\n", tern_error());
    tern_request_close(r);
    return 0;
}

int main(int argc, char **argv)
{
    struct progress p = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, argc - 2, 0 };
    tern_model *m = NULL;
    tern_params params;

    if (argc < 3) {
        fprintf(stderr, "usage: callback MODEL PROMPT...\n");
        return 2;
    }
    if (tern_open(&m, argv[1], NULL) != TERN_OK) {
        fprintf(stderr, "callback: %s\n", tern_error());
        return 1;
    }
    tern_params_init(&params, m);
    params.max_tokens = 30;
    params.raw = 1;
    for (int i = 2; i < argc; i++)
        if (!start(m, argv[i], &params, &p)) {
            pthread_mutex_lock(&p.lock);
            p.left--;
            p.failed = 1;
            pthread_mutex_unlock(&p.lock);
        }
    pthread_mutex_lock(&p.lock);
    while (p.left > 0) pthread_cond_wait(&p.news, &p.lock);
    pthread_mutex_unlock(&p.lock);
    tern_close(m);
    return p.failed;
}
