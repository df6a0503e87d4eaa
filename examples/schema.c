/* schema.c - an answer that a program can read: the text matches a JSON schema, whatever the model
 * would like to say.
 *
 *     schema MODEL "question" */
#include <tern.h>

#include <stdio.h>
#include <string.h>

static const char schema[] =
    "{\"type\": \"object\","
    " \"properties\": {"
    "   \"animal\": {\"enum\": [\"frog\", \"dog\", \"bird\"]},"
    "   \"legs\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 8}},"
    " \"required\": [\"animal\", \"legs\"]}";

int main(int argc, char **argv)
{
    const char *question = argc > 2 ? argv[2] : "Which animal is it, and how many legs has it?";
    tern_model *m = NULL;
    tern_request *r = NULL;
    tern_params p;
    tern_event ev;
    int rc;

    if (argc < 2) {
        fprintf(stderr, "usage: schema MODEL [QUESTION]\n");
        return 2;
    }
    if ((rc = tern_open(&m, argv[1], NULL)) == TERN_OK) {
        tern_params_init(&p, m);
        p.temp = 0; /* the most likely answer */
        p.max_tokens = 100;
        p.json_schema = schema;
        rc = tern_submit(&r, m, question, strlen(question), &p);
    }
    while (rc == TERN_OK && (rc = tern_next(r, &ev)) == TERN_OK) {
        fwrite(ev.text, 1, ev.n, stdout);
        if (ev.finish != TERN_FINISH_NONE) break;
    }
    puts("");
    if (rc != TERN_OK) fprintf(stderr, "schema: %s: %s\n", tern_code_name(rc), tern_error());
    tern_request_close(r);
    tern_close(m);
    return rc == TERN_OK ? 0 : 1;
}
