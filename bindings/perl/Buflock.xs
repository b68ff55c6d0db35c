/* The C API as Perl methods, and nothing more: what is decided is decided in Perl. Buflock::FFI has the same methods. */
#define PERL_NO_GET_CONTEXT
#include "EXTERN.h"
#include "perl.h"
#include "XSUB.h"
#include <buflock.h>

#define SLICE_MS 50

static void free_op(pTHX_ void *op)
{
    PERL_UNUSED_CONTEXT;
    buflock_op_free((buflock_op *)op);
}

static SV *boxed(pTHX_ const char *class, void *pointer)
{
    SV *box = sv_newmortal();
    sv_setref_pv(box, class, pointer);
    return box;
}

/* Takes the pointer out of an object that is destroyed. */
static void *unboxed(pTHX_ SV *box)
{
    void *pointer = INT2PTR(void *, SvIV(SvRV(box)));
    sv_setiv(SvRV(box), 0);
    return pointer;
}

/* Drives an op to its end. Between slices signal handlers run, and may die: see to it that the op is freed then. */
static int run(pTHX_ buflock_op *op)
{
    int status;
    while ((status = buflock_op_run(op, SLICE_MS)) == BUFLOCK_INTERRUPTED)
        PERL_ASYNC_CHECK();
    return status;
}

/* Signals stay pending meanwhile. */
static void no_signals(pTHX)
{
    PERL_UNUSED_CONTEXT;
}

/* Makes the status and the text of a failure the answer. */
#define ANSWER(status, op) STMT_START { \
    mXPUSHi(status); \
    if ((status) < 0) \
        mXPUSHs(newSVpv((op) ? buflock_op_error(op) : buflock_last_error(), 0)); \
} STMT_END

#define ANSWER_INFO(status, info) STMT_START { \
    if ((status) == BUFLOCK_OK || (status) == BUFLOCK_BUSY) { \
        EXTEND(SP, 4); \
        mPUSHu((info).left_ms); \
        mPUSHu((info).waited_ms); \
        mPUSHu((info).holder); \
        mPUSHu((info).fence); \
    } \
} STMT_END

/* The end of a call that drives an op: the handlers may have moved the stack. */
#define DRIVE(made, op, finish) STMT_START { \
    status = (made); \
    ENTER; \
    SAVEDESTRUCTOR_X(free_op, op); \
    if (status == BUFLOCK_OK) \
        status = run(aTHX_ op); \
    if (status == BUFLOCK_OK) \
        status = (finish); \
    SPAGAIN; \
    SP -= items; \
    ANSWER(status, op); \
} STMT_END

MODULE = Buflock  PACKAGE = Buflock::XS

PROTOTYPES: DISABLE

int
abi()
  CODE:
    RETVAL = buflock_abi();
  OUTPUT:
    RETVAL

const char *
version()
  CODE:
    RETVAL = buflock_version();
  OUTPUT:
    RETVAL

const char *
status_name(int status)
  CODE:
    RETVAL = buflock_status_name(status);
  OUTPUT:
    RETVAL

void
open(const char *class, const char *url, ...)
  PREINIT:
    buflock_config *config;
    buflock_t *lock = NULL;
    int status = BUFLOCK_OK, i;
  PPCODE:
    config = buflock_config_new();
    for (i = 2; i + 1 < items && status == BUFLOCK_OK; i += 2)
        status = buflock_config_set(config, SvPVbyte_nolen(ST(i)), SvPVbyte_nolen(ST(i + 1)));
    if (status == BUFLOCK_OK)
        status = buflock_new(url, config, &lock);
    buflock_config_free(config);
    ANSWER(status, (buflock_op *)NULL);
    if (status == BUFLOCK_OK)
        XPUSHs(boxed(aTHX_ class, lock));

void
acquire(buflock_t *lock, SV *key, U32 ttl_ms, U32 wait_ms, SV *token)
  PREINIT:
    STRLEN size;
    const char *bytes;
    char text[BUFLOCK_TOKEN_SIZE];
    buflock_info info = { sizeof info, 0, 0, 0, 0 };
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    DRIVE(buflock_op_acquire(lock, bytes, size, ttl_ms, wait_ms, &op), op, buflock_op_finish(op, text, &info));
    if (status == BUFLOCK_OK)
        sv_setpv_mg(token, text);
    ANSWER_INFO(status, info);
    LEAVE;

void
extend(buflock_t *lock, SV *key, const char *token, U32 ttl_ms)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    DRIVE(buflock_op_extend(lock, bytes, size, token, ttl_ms, &op), op, buflock_op_finish(op, NULL, NULL));
    LEAVE;

void
release(buflock_t *lock, SV *key, const char *token)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    DRIVE(buflock_op_release(lock, bytes, size, token, &op), op, buflock_op_finish(op, NULL, NULL));
    LEAVE;

void
await(buflock_t *lock, SV *key, U32 wait_ms)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    DRIVE(buflock_op_await(lock, bytes, size, wait_ms, &op), op, buflock_op_finish(op, NULL, NULL));
    LEAVE;

void
release_now(buflock_t *lock, SV *key, const char *token)
  ALIAS:
    drop = 1
  PREINIT:
    STRLEN size;
    const char *bytes;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = (ix ? buflock_drop : buflock_release)(lock, bytes, size, token);
    ANSWER(status, (buflock_op *)NULL);

void
inspect(buflock_t *lock, SV *key)
  PREINIT:
    STRLEN size;
    const char *bytes;
    char holder[128] = "";
    buflock_info info = { sizeof info, 0, 0, 0, 0 };
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = buflock_inspect(lock, bytes, size, &info, holder, sizeof holder);
    ANSWER(status, (buflock_op *)NULL);
    ANSWER_INFO(status, info);
    if (status == BUFLOCK_BUSY)
        mXPUSHp(holder, strlen(holder));

void
break(buflock_t *lock, SV *key)
  PREINIT:
    STRLEN size;
    const char *bytes;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = buflock_break(lock, bytes, size);
    ANSWER(status, (buflock_op *)NULL);

void
stats(buflock_t *lock)
  PREINIT:
    size_t size = 4095;
    SV *json;
    int status, tries;
  PPCODE:
    json = sv_2mortal(newSVpvs(""));
    for (tries = 0; tries < 3; tries++) {
        size_t room = size + 1;
        status = buflock_stats(lock, SvGROW(json, room), room, &size);
        if (status != BUFLOCK_ARGUMENT)
            break;
    }
    ANSWER(status, (buflock_op *)NULL);
    if (status == BUFLOCK_OK) {
        SvCUR_set(json, size);
        XPUSHs(json);
    }

void
op_acquire(buflock_t *lock, SV *key, U32 ttl_ms, U32 wait_ms)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = buflock_op_acquire(lock, bytes, size, ttl_ms, wait_ms, &op);
    ANSWER(status, op);
    if (status == BUFLOCK_OK)
        XPUSHs(boxed(aTHX_ "Buflock::XS::Op", op));

void
op_extend(buflock_t *lock, SV *key, const char *token, U32 ttl_ms)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = buflock_op_extend(lock, bytes, size, token, ttl_ms, &op);
    ANSWER(status, op);
    if (status == BUFLOCK_OK)
        XPUSHs(boxed(aTHX_ "Buflock::XS::Op", op));

void
op_release(buflock_t *lock, SV *key, const char *token)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = buflock_op_release(lock, bytes, size, token, &op);
    ANSWER(status, op);
    if (status == BUFLOCK_OK)
        XPUSHs(boxed(aTHX_ "Buflock::XS::Op", op));

void
op_await(buflock_t *lock, SV *key, U32 wait_ms)
  PREINIT:
    STRLEN size;
    const char *bytes;
    buflock_op *op = NULL;
    int status;
  PPCODE:
    bytes = SvPVbyte(key, size);
    status = buflock_op_await(lock, bytes, size, wait_ms, &op);
    ANSWER(status, op);
    if (status == BUFLOCK_OK)
        XPUSHs(boxed(aTHX_ "Buflock::XS::Op", op));

void
bell_fd(buflock_t *lock)
  PREINIT:
    int fd = -1, status;
  PPCODE:
    status = buflock_bell_fd(lock, &fd);
    ANSWER(status, (buflock_op *)NULL);
    if (status == BUFLOCK_OK)
        mXPUSHi(fd);

void
bell_read(buflock_t *lock)
  PREINIT:
    uint32_t ids[64];
    size_t count = 0, i;
    int status;
  PPCODE:
    status = buflock_bell_read(lock, ids, 64, &count);
    ANSWER(status, (buflock_op *)NULL);
    if (status == BUFLOCK_OK)
        for (i = 0; i < count; i++)
            mXPUSHu(ids[i]);

void
DESTROY(SV *self)
  PPCODE:
    buflock_free((buflock_t *)unboxed(aTHX_ self));

int
CLONE_SKIP(...)
  CODE:
    PERL_UNUSED_VAR(items);
    RETVAL = 1;
  OUTPUT:
    RETVAL

MODULE = Buflock  PACKAGE = Buflock::XS::Op

void
next(buflock_op *op)
  PREINIT:
    buflock_step step;
    int status;
  PPCODE:
    Zero(&step, 1, buflock_step);
    step.size = sizeof step;
    status = buflock_op_next(op, &step);
    ANSWER(status, op);
    if (status == BUFLOCK_OK) {
        EXTEND(SP, 10);
        mPUSHi(step.kind);
        mPUSHu(step.ms);
        mPUSHu(step.id);
        mPUSHi(step.keep);
        mPUSHi(step.tls);
        mPUSHu(step.port);
        mPUSHu(step.count);
        mPUSHs(step.host ? newSVpv(step.host, 0) : newSV(0));
        mPUSHs(step.pool ? newSVpv(step.pool, 0) : newSV(0));
        mPUSHs(step.data ? newSVpvn(step.data, step.data_len) : newSV(0));
    }

void
connected(buflock_op *op, int fresh)
  PREINIT:
    int status;
  PPCODE:
    status = buflock_op_connected(op, fresh);
    ANSWER(status, op);

void
feed(buflock_op *op, SV *data)
  PREINIT:
    STRLEN size;
    const char *bytes;
    int status;
  PPCODE:
    bytes = SvPVbyte(data, size);
    status = buflock_op_feed(op, bytes, size);
    ANSWER(status, op);

void
fail(buflock_op *op, const char *why)
  PREINIT:
    int status;
  PPCODE:
    status = buflock_op_fail(op, why);
    ANSWER(status, op);

void
command(buflock_op *op)
  PREINIT:
    buflock_step step;
    const char *data = NULL;
    size_t size = 0;
    int status;
    U32 i;
  PPCODE:
    Zero(&step, 1, buflock_step);
    step.size = sizeof step;
    status = buflock_op_next(op, &step);
    ANSWER(status, op);
    for (i = 0; buflock_op_argument(op, i, &data, &size) == BUFLOCK_OK; i++)
        mXPUSHp(data, size);

void
reply(buflock_op *op, int kind, IV number, SV *text)
  PREINIT:
    STRLEN size;
    const char *bytes;
    int status;
  PPCODE:
    bytes = SvPVbyte(text, size);
    status = buflock_op_reply(op, kind, number, bytes, size);
    ANSWER(status, op);

void
cancel(buflock_op *op)
  PREINIT:
    int status;
  PPCODE:
    status = buflock_op_cancel(op);
    ANSWER(status, op);

void
run(buflock_op *op, U32 slice_ms)
  PREINIT:
    int status;
  PPCODE:
    status = buflock_op_run(op, slice_ms);
    ANSWER(status, op);

void
finish(buflock_op *op, SV *token)
  PREINIT:
    char text[BUFLOCK_TOKEN_SIZE] = "";
    buflock_info info = { sizeof info, 0, 0, 0, 0 };
    int status;
  PPCODE:
    status = buflock_op_finish(op, text, &info);
    if (status == BUFLOCK_OK && *text)
        sv_setpv_mg(token, text);
    ANSWER(status, op);
    ANSWER_INFO(status, info);

void
DESTROY(SV *self)
  PPCODE:
    buflock_op_free((buflock_op *)unboxed(aTHX_ self));

int
CLONE_SKIP(...)
  CODE:
    PERL_UNUSED_VAR(items);
    RETVAL = 1;
  OUTPUT:
    RETVAL

MODULE = Buflock  PACKAGE = Buflock::XS::Guard

void
DESTROY(SV *self)
  PREINIT:
    SV **done;
  PPCODE:
    done = hv_fetchs((HV *)SvRV(self), "done", 0);
    if (done && SvTRUE(*done))
        XSRETURN_EMPTY;
    ENTER;
    SAVEVPTR(PL_signalhook);
    PL_signalhook = no_signals;
    PUSHMARK(SP);
    XPUSHs(self);
    PUTBACK;
    call_pv("Buflock::Guard::DESTROY", G_VOID | G_DISCARD);
    SPAGAIN;
    LEAVE;
