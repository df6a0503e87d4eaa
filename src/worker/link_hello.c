/* link_hello.c - the handshake of a link: HELLO, then WELCOME, from each side.
 *
 * Both sides send HELLO at once and WELCOME after the peer's HELLO, so that the handshake takes one
 * round trip. docs/protocol.md describes it. */
#include "worker/link_impl.h"
#include "worker/message.h"

#include <stdio.h>

int hello_send(struct link *l, struct err *e)
{
    char nonce[HANDSHAKE_HEX + 1];
    struct msg_hello m = { .role = frame_role_name(l->opt.role),
                           .version_min = FRAME_VERSION,
                           .version_max = FRAME_VERSION,
                           .build = l->opt.build,
                           .name = l->opt.name,
                           .nonce = nonce,
                           .window = l->opt.window };
    struct frame f = { .type = FRAME_HELLO };
    int rc = handshake_nonce(nonce, e);

    if (rc != OK) return rc;
    if (l->opt.role == FRAME_WORKER) m.max_streams = l->opt.max_streams;
    msg_write_hello(&l->hello, &m);
    if ((rc = buf_check(&l->hello, e)) != OK) return rc;
    if (l->hello.n > frame_max(FRAME_HELLO))
        return err_set(e, E_INVALID, "handshake: build and name are too long");
    f.p = l->hello.p, f.n = (uint32_t)l->hello.n;
    return out_frame(l, &f) ? OK : err_nomem(e, "the first frame of a connection");
}

static int compute_mac(struct link *l, enum frame_role sender, char *mac, struct err *e)
{
    bool server = l->opt.role == FRAME_SERVER;

    return handshake_mac(mac, l->opt.token, sender, buf_str(server ? &l->hello : &l->peer_hello),
                         buf_str(server ? &l->peer_hello : &l->hello), e);
}

static int send_welcome(struct link *l, struct err *e)
{
    char mac[HANDSHAKE_HEX + 1];
    struct msg_welcome m = { .version = FRAME_VERSION, .mac = mac };
    struct frame f = { .type = FRAME_WELCOME };
    int rc = compute_mac(l, l->opt.role, mac, e);

    if (rc != OK) return rc;
    buf_clear(&l->json);
    msg_write_welcome(&l->json, &m);
    if ((rc = buf_check(&l->json, e)) != OK) return rc;
    f.p = l->json.p, f.n = (uint32_t)l->json.n;
    return out_frame(l, &f) ? OK : err_nomem(e, "the handshake");
}

/* Sets *code and e where the peer is refused. */
static int check_hello(struct link *l, const struct msg_hello *m, const char **code, struct err *e)
{
    const char *role = frame_role_name(frame_peer(l->opt.role));

    if (strcmp(m->role, role) != 0) {
        *code = "role";
        return err_set(e, E_DENIED, "handshake: the peer is a '%.32s', a %s was expected", m->role,
                       role);
    }
    if (m->version_min > FRAME_VERSION || m->version_max < FRAME_VERSION) {
        *code = "version";
        return err_set(
            e, E_DENIED, "handshake: the peer (%.64s) speaks versions %lld to %lld, we speak %d",
            m->build, (long long)m->version_min, (long long)m->version_max, FRAME_VERSION);
    }
    if (!handshake_is_hex(m->nonce))
        return err_set(e, E_FORMAT, "frame HELLO: nonce: must have 64 hexadecimal digits");
    if (l->opt.role == FRAME_SERVER && m->max_streams < 1)
        return err_set(e, E_FORMAT, "frame HELLO: max_streams: a worker must take one");
    return OK;
}

static void refuse_peer(struct link *l, int rc, const char *code, const struct err *e)
{
    if (rc == E_NOMEM) link_fail_nomem(l, "the handshake");
    else link_fail(l, rc == E_DENIED ? LINK_DENIED : LINK_PROTOCOL, code, e);
}

static void receive_hello(struct link *l, const struct frame *f)
{
    struct msg_hello m;
    struct err e;
    const char *code = "format";
    int rc;

    arena_reset(&l->arena);
    rc = msg_read_hello(&m, &l->arena, frame_payload(f), &e);
    if (rc == OK) rc = check_hello(l, &m, &code, &e);
    if (rc == OK) {
        buf_put_str(&l->peer_hello, frame_payload(f));
        rc = buf_check(&l->peer_hello, &e);
    }
    if (rc == OK) {
        snprintf(l->peer_build, sizeof l->peer_build, "%s", m.build);
        snprintf(l->peer_name, sizeof l->peer_name, "%s", m.name);
        l->peer_window = (uint32_t)m.window;
        l->peer_streams = (int)m.max_streams;
        rc = send_welcome(l, &e);
    }
    if (rc != OK) refuse_peer(l, rc, code, &e);
    else l->phase = PHASE_WELCOME;
}

static void receive_welcome(struct link *l, const struct frame *f)
{
    char mac[HANDSHAKE_HEX + 1];
    struct msg_welcome m;
    struct err e;
    const char *code = "format";
    int rc;

    arena_reset(&l->arena);
    rc = msg_read_welcome(&m, &l->arena, frame_payload(f), &e);
    if (rc == OK) rc = compute_mac(l, frame_peer(l->opt.role), mac, &e);
    if (rc == OK && m.version != FRAME_VERSION) {
        code = "version";
        rc = err_set(&e, E_DENIED, "handshake: the peer chose version %lld, not %d",
                     (long long)m.version, FRAME_VERSION);
    }
    if (rc == OK && (!handshake_is_hex(m.mac) || !handshake_equal(mac, m.mac))) {
        code = "token";
        rc = err_set(&e, E_DENIED, "handshake: the peer has another token");
    }
    if (rc != OK) {
        refuse_peer(l, rc, code, &e);
        return;
    }
    buf_release(&l->hello);
    buf_release(&l->peer_hello);
    l->phase = PHASE_OPEN;
    l->opt.opened(l->opt.arg, l);
}

void hello_receive(struct link *l, const struct frame *f)
{
    if (f->type == FRAME_HELLO && l->phase == PHASE_HELLO) receive_hello(l, f);
    else if (f->type == FRAME_WELCOME && l->phase == PHASE_WELCOME) receive_welcome(l, f);
    else {
        struct err e;
        err_set(&e, E_FORMAT, "frame %s at byte %llu: the handshake is not over",
                frame_name(f->type), (unsigned long long)l->offset);
        link_fail(l, LINK_PROTOCOL, "state", &e);
    }
}
