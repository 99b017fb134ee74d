/* Signal handlers that arrive in the middle of a call of ours wait until it ends, as they wait for
 * a system call on a file: the call is whole for them, may be repeated by them, and may be left by
 * longjmp(3). The handler that the kernel knows is `arrive`. */
#define _GNU_SOURCE
#include "table.h"

#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { SIGNALS = 65 };

typedef void handler(int, siginfo_t *, void *);
/* The program's handler of each signal, and whether it asked for SA_SIGINFO. */
static _Atomic(handler *) handlers[SIGNALS];
static _Atomic bool wants_information[SIGNALS];

/* Signals that the instruction at hand has caused cannot wait. */
static const uint64_t SYNCHRONOUS = 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) |
                                    1ull << (SIGILL - 1) | 1ull << (SIGFPE - 1) |
                                    1ull << (SIGTRAP - 1) | 1ull << (SIGSYS - 1);

static void arrive(int signal, siginfo_t *information, void *context) {
    bool waits = self.depth > 0 && !self.deferred && !(SYNCHRONOUS >> (signal - 1) & 1);
    if (!waits) {
        handler *call = atomic_load(&handlers[signal]);
        if (call) call(signal, information, context);
        return;
    }
    self.information = *information;
    /* Until then no other arrives: they wait in the kernel. The kernel's mask is the first eight
     * bytes; what lies behind it is not the C library's type. */
    void *mask = &((ucontext_t *)context)->uc_sigmask;
    memcpy(&self.mask, mask, sizeof self.mask);
    uint64_t all = ~SYNCHRONOUS;
    memcpy(mask, &all, sizeof all);
    self.deferred = signal;
}

void deliver_deferred(void) {
    int signal = self.deferred;
    self.deferred = 0;
    /* SA_RESETHAND has had its effect when the handler did not run yet. */
    struct {
        handler *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } action;
    bool reset = raw(SYS_rt_sigaction, signal, NULL, &action, 8) == 0 && !action.handler &&
                 atomic_load(&handlers[signal]);
    if (reset) {
        handler *call = atomic_exchange(&handlers[signal], NULL);
        siginfo_t information = self.information;
        raw(SYS_rt_sigprocmask, SIG_SETMASK, &self.mask, NULL, 8);
        call(signal, &information, NULL);
        return;
    }
    /* It is blocked: it arrives again when the mask is what it was. */
    raw(SYS_rt_tgsigqueueinfo, raw(SYS_getpid), raw(SYS_gettid), signal, &self.information);
    raw(SYS_rt_sigprocmask, SIG_SETMASK, &self.mask, NULL, 8);
}

static bool is_handler(void *what) {
    return what != (void *)SIG_DFL && what != (void *)SIG_IGN && what != (void *)SIG_ERR;
}

EXPORT int sigaction(int signal, const struct sigaction *restrict action,
                     struct sigaction *restrict before) {
    if (signal < 1 || signal >= SIGNALS || self.vforked)
        return REAL(sigaction)(signal, action, before);
    handler *old_handler = atomic_load(&handlers[signal]);
    bool old_wants = atomic_load(&wants_information[signal]);
    struct sigaction ours, found;
    if (action) {
        ours = *action;
        if (is_handler((void *)action->sa_sigaction)) {
            atomic_store(&wants_information[signal], action->sa_flags & SA_SIGINFO);
            atomic_store(&handlers[signal], action->sa_sigaction);
            ours.sa_sigaction = arrive;
            ours.sa_flags |= SA_SIGINFO;
        }
    }
    if (REAL(sigaction)(signal, action ? &ours : NULL, &found) != 0) {
        atomic_store(&handlers[signal], old_handler);
        atomic_store(&wants_information[signal], old_wants);
        return -1;
    }
    if (before) {
        *before = found;
        if (found.sa_sigaction == arrive) {
            before->sa_sigaction = old_handler;
            if (!old_wants) before->sa_flags &= ~SA_SIGINFO;
        }
    }
    return 0;
}

static sighandler_t set(int signal, sighandler_t to, int flags) {
    struct sigaction action = {.sa_handler = to, .sa_flags = flags}, before;
    sigemptyset(&action.sa_mask);
    if (!(flags & SA_NODEFER)) sigaddset(&action.sa_mask, signal);
    return sigaction(signal, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

/* siginterrupt(3) changes what signal(3) does afterwards. */
static uint64_t interrupting;

EXPORT int siginterrupt(int signal, int interrupts) {
    int result = REAL(siginterrupt)(signal, interrupts);
    if (result == 0) {
        uint64_t bit = 1ull << (signal - 1);
        interrupting = interrupts ? interrupting | bit : interrupting & ~bit;
    }
    return result;
}

EXPORT sighandler_t signal(int signal, sighandler_t to) {
    bool interrupts = signal > 0 && signal < SIGNALS && interrupting >> (signal - 1) & 1;
    return set(signal, to, interrupts ? 0 : SA_RESTART);
}
EXPORT sighandler_t bsd_signal(int, sighandler_t) __attribute__((alias("signal")));
EXPORT sighandler_t ssignal(int, sighandler_t) __attribute__((alias("signal")));

EXPORT sighandler_t sysv_signal(int signal, sighandler_t to) {
    return set(signal, to, SA_RESETHAND | SA_NODEFER);
}
EXPORT sighandler_t __sysv_signal(int, sighandler_t) __attribute__((alias("sysv_signal")));
