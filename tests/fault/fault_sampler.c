/* A sampler under faults: opening one with every option that needs memory, and sampling. */
#include "fault.h"

#include "sample/sampler.h"

static int open_and_sample(void *arg, struct err *e)
{
    static const struct logit_bias bias[] = { { 5, 1 }, { 2, -1 }, { 5, 1 } };
    struct sample_opt o = sample_defaults();
    struct sampler *s = NULL;
    float logits[200];
    int32_t id = -1;
    int rc;

    (void)arg;
    o.bias = bias;
    o.n_bias = 3;
    o.repeat_penalty = 1.2f;
    o.freq_penalty = 0.5f;
    for (int i = 0; i < 200; i++) logits[i] = (float)(i % 17);
    if ((rc = sampler_open(&s, &o, 200, e)) != OK) return rc;
    for (int i = 0; i < 100 && rc == OK; i++) rc = sampler_next(s, logits, &id, e);
    sampler_close(s);
    return rc;
}

static void a_sampler_with_penalties_and_bias(void **state)
{
    (void)state;
    fault_run("sampler: open and sample", open_and_sample, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_sampler_with_penalties_and_bias) };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
