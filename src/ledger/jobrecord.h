/* jobrecord.h - durable jobs and their answers as messages of JetStream: a line of JSON, a line end,
 * and the body as it is (docs/protocol.md).
 *
 *     {"v":1,"kind":"job","id":"job_...","tenant":"a","endpoint":"/v1/completions",...,"bytes":41}
 *     {"prompt": ...}
 *
 * The subject of a message follows from its tenant and id, and `bytes` from its length, so that a message
 * that was cut, or stands under another name, is found. Readers trust nothing of it. */
#ifndef TERN_LEDGER_JOBRECORD_H
#define TERN_LEDGER_JOBRECORD_H

#include "base/buf.h"
#include "base/err.h"
#include "ledger/ledgerapi.h"

enum { JOBRECORD_ID = 40, JOBRECORD_HEAD = 2048 };

struct jobrecord {
    bool is_answer;
    char id[JOBRECORD_ID], tenant[64], endpoint[64];
    int64_t created;
    struct str body; /* of the request, or of the reply; or a sentence about the error; borrowed */
    /* of an answer: */
    int64_t ended;
    int status;     /* of HTTP; 0: it got none, and error says why */
    char error[40]; /* code; "": none */
};

void jobrecord_write(const struct jobrecord *r, struct buf *out);
/* E_UNSUPPORTED: written by another version; E_FORMAT names what is wrong. */
int jobrecord_read(struct jobrecord *out, struct str message, struct err *e);

/* The job as GET /v1/jobs/{id} shows it; whole: with the body of the answer. */
struct jsonw;
void jobrecord_write_json(const struct jobrecord *r, struct jsonw *w, bool whole);

/* "job_" and 24 letters or digits. */
bool jobrecord_is_id(struct str id);
/* A new id; with a key (p is not NULL) the same for the same tenant and key. */
void jobrecord_make_id(char out[JOBRECORD_ID], const char *tenant, struct str key);
/* prefix and 24 letters, which sort by time; out has room for both and a NUL. */
void jobrecord_new_id(char *out, const char *prefix);
void jobrecord_tenant(char out[33], const char *tenant); /* a token of a subject */
/* The subject of a job's message. id "*": the pattern of all jobs of the tenant. */
void jobrecord_subject(char out[LEDGER_SUBJECT], enum ledger_stream st, const char *tenant,
                       const char *id);
/* The id at the end of a subject; false: it is none of ours. */
bool jobrecord_id_of(const char *subject, char out[JOBRECORD_ID]);
/* The subject of its answer; false: the subject is not that of a job. */
bool jobrecord_answer_of(const char *subject, char out[LEDGER_SUBJECT]);
#endif
