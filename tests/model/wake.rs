//! Sleeping on a held key, and waking.
//!
//! One slot, one key. Each step of a process is one access to shared memory, or one system call. Acquirers take the
//! key, may extend their hold any number of times, release, and go on as long as they like; all may give up at any
//! look. So runs of every length are covered.
//!
//! What is abstracted:
//!
//! * **Values.** Words and counts are only ever compared with what was read before, and no value comes back: a hold has
//!   its sequence number and time, a count only grows. So all that matters of a remembered value is whether it is still
//!   the present one, and a write makes what others remember stale. (Not modelled: a count that goes round to the same
//!   value between a load and the sleep.)
//! * **Order of waking.** The kernel may wake any sleeper.
//! * **Time.** No sleep ends by itself, except that of one who leaves. Real sleeps end at the holder's expiry and after
//!   a slice at the latest; that is the safety net for kills, and no kill is modelled here. So is no steal: whoever
//!   sleeps looks again when the lease that it saw has run out.
//!
//! Symmetry: processes are interchangeable but for what they remember, so they are sorted.

use crate::search::{Explain, Model};
use std::mem;

const MAX_PROCESSES: usize = 5;
const MAX_BELLS: usize = 2;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Who consumed a wake-up and leaves without the lock wakes nobody.
    LeaverWakesNobody,
    /// The flag for waiters is set before the count is loaded.
    FlagBeforeCount,
    /// Who finds the flag set already does not read the word again.
    FlagTrusted,
    /// The flag is cleared though an acquirer was woken: others may sleep still.
    FlagClearedAlways,
    /// The flag is cleared from whatever word stands there.
    FlagClearedBlindly,
    /// A bell sets its bit after its last look at the word.
    BitAfterLook,
    /// A slot with waiters is bound to another key in silence.
    ClaimRingsNobody,
    /// The count of the awaiters is not raised.
    AwaitersNotCounted,
    /// Bells' bits are taken, but their mailboxes are not rung.
    BellsNotRung,
    /// An awaiter takes a changed count for the end of the hold it saw.
    AwaiterBelievesCount,
}

/// What a process is after.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// To hold the key, without blocking: it sleeps on its mailbox, which is rung when its bit is set in the slot.
    Bell,
    /// To hold the key. Sleeps on the count of acquirers.
    Acquirer,
    /// To see the hold end that it saw first. Sleeps on the count of awaiters.
    Awaiter,
    /// To bind the slot to another key, when it is free.
    Binder,
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Wake {
    /// The processes.
    pub roles: &'static [Role],
    /// Whether an acquirer that has slept sets the flag when it takes the key.
    pub sleeper_keeps_flag: bool,
    /// The planted bug.
    pub mutant: Option<Mutant>,
}

/// What the slot's word says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Key {
    Free,
    Held,
    /// The slot belongs to another key.
    Gone,
}

/// The last steps before a sleep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Arm {
    /// The count to sleep on is loaded.
    Count,
    /// A bell's bit is set in the slot.
    Bit,
    /// The flag is set on exactly the word that was seen; or, if it is set already, the word is seen again.
    Flag,
}

/// The steps of waking everybody who should look again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Ring {
    CountAcquirers,
    WakeAcquirers,
    CountAwaiters,
    WakeAwaiters,
    TakeBits,
    CountMailbox(usize),
    WakeMailbox(usize),
    ClearFlag,
}

/// What a process does next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum At {
    Look,
    Arm(Arm),
    /// About to sleep: the kernel compares the count.
    Sleep,
    Asleep,
    Take,
    Hold,
    Ring(Ring),
    /// Leaving with a wake-up that others may need.
    PassOn,
    Done,
    /// An awaiter answered that the hold had ended, and it had not.
    Wrong,
}

impl At {
    const RING: Self = Self::Ring(Ring::CountAcquirers);
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(clippy::struct_excessive_bools)] // they are what the process remembers, independent of each other
struct Process {
    role: Role,
    at: At,
    /// The word that it read or wrote last still stands.
    word_stands: bool,
    /// A planted bug: that word had the flag, and it will not look again.
    trusts_flag: bool,
    /// The count that it loaded is the present one.
    count_stands: bool,
    /// It has consumed a wake-up, and not seen the key held since.
    woken: bool,
    /// It has slept since it last held the key.
    slept: bool,
    /// Its bit is set in the slot.
    bit: bool,
    /// An awaiter: whether the hold that it saw first lasts.
    first_hold: Option<bool>,
    /// A ringer: everybody is to be woken, for the key leaves the slot.
    everybody: bool,
    /// A ringer: an acquirer was woken.
    woke_one: bool,
    /// A ringer: the bells that it has yet to ring.
    bells: [bool; MAX_BELLS],
}

impl Process {
    fn new(role: Role) -> Self {
        Self {
            role,
            at: At::Look,
            word_stands: false,
            trusts_flag: false,
            count_stands: false,
            woken: false,
            slept: false,
            bit: false,
            first_hold: None,
            everybody: false,
            woke_one: false,
            bells: [false; MAX_BELLS],
        }
    }

    /// It goes to `at`, and forgets all but its bit.
    fn forget(&mut self, at: At) {
        *self = Self { at, bit: self.bit, ..Self::new(self.role) };
    }

    /// It goes back to look at the word, and forgets what it read.
    fn look_again(&mut self) {
        self.at = At::Look;
        (self.word_stands, self.trusts_flag) = (false, false);
        // Only an awaiter that believes in counts would look at this again.
        self.count_stands &= self.role == Role::Awaiter;
    }

    /// What a ringer does after taking the bits, or after a bell.
    fn next_bell(&self) -> At {
        let bell = self.bells.iter().position(|rings| *rings);
        At::Ring(bell.map_or(Ring::ClearFlag, Ring::CountMailbox))
    }

    /// A sleeper that was woken.
    fn wake_up(&mut self) {
        self.at = At::Look;
        self.woken = self.role == Role::Acquirer;
    }
}

/// The slot, and what each process does next.
#[derive(Clone, Hash)]
pub struct State {
    key: Key,
    /// Somebody may sleep on this slot.
    flag: bool,
    processes: [Process; MAX_PROCESSES],
}

impl State {
    /// The word becomes another one: what others remember of it is out of date.
    fn set_word(&mut self, key: Key, flag: bool) {
        (self.key, self.flag) = (key, flag);
        for process in &mut self.processes {
            process.word_stands = false;
        }
    }

    /// A count is raised: what the sleepers on it have loaded is out of date.
    fn raise_count(&mut self, role: Role) {
        for process in self.processes.iter_mut().filter(|process| process.role == role) {
            process.count_stands = false;
        }
    }

    fn asleep(&self, role: Role) -> impl Iterator<Item = usize> {
        let sleeps = move |process: &Process| process.role == role && process.at == At::Asleep;
        (0..MAX_PROCESSES).filter(move |&who| sleeps(&self.processes[who]))
    }

    fn end_hold(&mut self) {
        for process in &mut self.processes {
            process.first_hold = process.first_hold.map(|_| false);
        }
    }

    fn wake_all(&mut self, role: Role) {
        for process in self.processes.iter_mut().filter(|process| process.role == role && process.at == At::Asleep) {
            process.wake_up();
        }
    }
}

/// One process's turn, in one state.
struct Turn<'a> {
    model: &'a Wake,
    state: &'a State,
    who: usize,
    next: &'a mut Vec<State>,
}

impl Turn<'_> {
    fn step(&mut self) {
        match self.me().at {
            At::Look => self.look(),
            At::Arm(arm) => self.arm(arm),
            At::Sleep => self.sleep(),
            At::Asleep => self.remember(|me| me.forget(At::Done)), // its own deadline: no wake-up is consumed
            At::Take => self.take(),
            At::Hold => self.hold(),
            At::Ring(ring) => self.ring(ring),
            At::PassOn => self.pass_on(),
            At::Done | At::Wrong => {}
        }
    }

    fn me(&self) -> &Process {
        &self.state.processes[self.who]
    }

    /// One way in which the step may go.
    fn change(&mut self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.clone();
        change(&mut state);
        self.next.push(state);
    }

    /// One way in which the step may go, seen by nobody else.
    fn remember(&mut self, change: impl FnOnce(&mut Process)) {
        let who = self.who;
        self.change(|state| change(&mut state.processes[who]));
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.model.mutant == Some(mutant)
    }

    fn look(&mut self) {
        let me = *self.me();
        match (self.state.key, me.role) {
            (Key::Gone, _) | (Key::Free, Role::Awaiter) => self.remember(|me| me.forget(At::Done)),
            (Key::Free, _) => self.remember(|me| {
                me.at = At::Take;
                me.word_stands = true;
            }),
            (Key::Held, Role::Awaiter) if me.first_hold == Some(false) => self.remember(|me| me.forget(At::Done)),
            (Key::Held, Role::Awaiter) if self.is_misled() => self.remember(|me| me.forget(At::Wrong)),
            (Key::Held, Role::Binder) => {}
            (Key::Held, _) => self.begin_arming(),
        }
        self.leave();
    }

    fn is_misled(&self) -> bool {
        let counted = self.me().first_hold.is_some();
        self.is(Mutant::AwaiterBelievesCount) && counted && !self.me().count_stands
    }

    /// Everybody may be interrupted, or out of time, at any look.
    fn leave(&mut self) {
        let passes_on = self.me().woken && !self.is(Mutant::LeaverWakesNobody);
        self.remember(|me| me.forget(if passes_on { At::PassOn } else { At::Done }));
    }

    fn begin_arming(&mut self) {
        let first = self.arm_order()[0];
        let trusts_flag = self.state.flag && self.is(Mutant::FlagTrusted);
        self.remember(|me| {
            me.at = At::Arm(first);
            me.word_stands = true;
            me.trusts_flag = trusts_flag;
            me.woken = false; // the holder will wake the next
            if me.role == Role::Awaiter {
                me.first_hold = Some(true);
            }
        });
    }

    fn arm_order(&self) -> &'static [Arm] {
        match (self.me().role, self.model.mutant) {
            (Role::Bell, Some(Mutant::FlagBeforeCount)) => &[Arm::Flag, Arm::Count, Arm::Bit],
            (Role::Bell, Some(Mutant::BitAfterLook)) => &[Arm::Count, Arm::Flag, Arm::Bit],
            (Role::Bell, _) => &[Arm::Count, Arm::Bit, Arm::Flag],
            (_, Some(Mutant::FlagBeforeCount)) => &[Arm::Flag, Arm::Count],
            _ => &[Arm::Count, Arm::Flag],
        }
    }

    fn arm(&mut self, arm: Arm) {
        let rest = self.arm_order().iter().skip_while(|step| **step != arm);
        let then = rest.copied().nth(1).map_or(At::Sleep, At::Arm);
        match arm {
            Arm::Count => self.remember(|me| {
                me.count_stands = true;
                me.at = then;
            }),
            Arm::Bit => self.remember(|me| {
                me.bit = true;
                me.at = then;
            }),
            Arm::Flag => self.arm_flag(then),
        }
    }

    fn arm_flag(&mut self, then: At) {
        let (who, me) = (self.who, *self.me());
        if !me.word_stands && !me.trusts_flag {
            self.remember(Process::look_again);
            return;
        }
        self.change(|state| {
            if !state.flag && !me.trusts_flag {
                state.set_word(state.key, true);
            }
            let me = &mut state.processes[who];
            (me.word_stands, me.trusts_flag) = (false, false); // of no use any more
            me.at = then;
        });
    }

    fn sleep(&mut self) {
        self.remember(|me| {
            me.slept = me.role != Role::Awaiter; // who takes nothing need not know
            if me.count_stands {
                me.at = At::Asleep;
                me.count_stands = false; // of no use any more
            } else {
                me.look_again();
            }
        });
    }

    fn take(&mut self) {
        let (who, me) = (self.who, *self.me());
        let flag = self.state.flag;
        if !me.word_stands {
            self.remember(Process::look_again);
        } else if me.role == Role::Binder {
            let rings = flag && !self.is(Mutant::ClaimRingsNobody);
            self.change(|state| {
                state.set_word(Key::Gone, false);
                let me = &mut state.processes[who];
                me.forget(if rings { At::RING } else { At::Done });
                me.everybody = rings;
            });
        } else {
            let keeps = self.model.sleeper_keeps_flag && me.slept;
            self.change(|state| {
                state.set_word(Key::Held, flag || keeps);
                state.processes[who].forget(At::Hold);
            });
        }
    }

    fn hold(&mut self) {
        let (who, flag) = (self.who, self.state.flag);
        self.change(|state| state.set_word(Key::Held, flag)); // extended
        let mut free = self.state.clone();
        free.set_word(Key::Free, flag);
        free.end_hold();
        if flag {
            free.processes[who].forget(At::RING);
            free.processes[who].word_stands = true;
            self.next.push(free);
        } else {
            self.rest(&free);
        }
    }

    /// After a release: it begins anew, or has enough.
    fn rest(&mut self, state: &State) {
        for at in [At::Look, At::Done] {
            let mut state = state.clone();
            state.processes[self.who].forget(at);
            self.next.push(state);
        }
    }

    fn ring(&mut self, ring: Ring) {
        let who = self.who;
        let at = |state: &mut State, ring| state.processes[who].at = At::Ring(ring);
        match ring {
            Ring::CountAcquirers => self.change(|state| {
                state.raise_count(Role::Acquirer);
                at(state, Ring::WakeAcquirers);
            }),
            Ring::WakeAcquirers => self.wake_acquirers(),
            Ring::CountAwaiters => {
                let raises = !self.is(Mutant::AwaitersNotCounted);
                self.change(|state| {
                    if raises {
                        state.raise_count(Role::Awaiter);
                    }
                    at(state, Ring::WakeAwaiters);
                });
            }
            Ring::WakeAwaiters => self.change(|state| {
                state.wake_all(Role::Awaiter);
                at(state, Ring::TakeBits);
            }),
            Ring::TakeBits => self.take_bits(),
            Ring::CountMailbox(bell) => self.change(|state| {
                state.processes[bell].count_stands = false;
                at(state, Ring::WakeMailbox(bell));
            }),
            Ring::WakeMailbox(bell) => self.wake_mailbox(bell),
            Ring::ClearFlag => self.clear_flag(),
        }
    }

    fn wake_acquirers(&mut self) {
        let who = self.who;
        if self.me().everybody {
            self.change(|state| {
                state.wake_all(Role::Acquirer);
                state.processes[who].at = At::Ring(Ring::CountAwaiters);
            });
        } else {
            self.wake_one(|me, woke_one| {
                me.woke_one = woke_one;
                me.at = At::Ring(Ring::CountAwaiters);
            });
        }
    }

    /// Wakes any one acquirer that sleeps; `then` is told whether there was one.
    fn wake_one(&mut self, then: impl Fn(&mut Process, bool)) {
        let (who, state) = (self.who, self.state);
        let mut woke_one = false;
        for sleeper in state.asleep(Role::Acquirer) {
            woke_one = true;
            self.change(|state| {
                state.processes[sleeper].wake_up();
                then(&mut state.processes[who], true);
            });
        }
        if !woke_one {
            self.remember(|me| then(me, false));
        }
    }

    fn take_bits(&mut self) {
        let (who, silent) = (self.who, self.is(Mutant::BellsNotRung));
        self.change(|state| {
            let mut taken = [false; MAX_BELLS];
            for (taken, process) in taken.iter_mut().zip(&mut state.processes) {
                *taken = mem::take(&mut process.bit) && !silent;
            }
            let me = &mut state.processes[who];
            me.bells = taken;
            me.at = me.next_bell();
        });
    }

    fn wake_mailbox(&mut self, bell: usize) {
        let who = self.who;
        self.change(|state| {
            if state.processes[bell].at == At::Asleep {
                state.processes[bell].wake_up();
            }
            let me = &mut state.processes[who];
            me.bells[bell] = false;
            me.at = me.next_bell();
        });
    }

    /// Who found no acquirer asleep clears the flag, if its free word still stands.
    fn clear_flag(&mut self) {
        let me = *self.me();
        if me.everybody {
            self.remember(|me| me.forget(At::Done)); // the flag went with the word
            return;
        }
        let nobody_sleeps = !me.woke_one || self.is(Mutant::FlagClearedAlways);
        let stands = me.word_stands || self.is(Mutant::FlagClearedBlindly);
        let mut state = self.state.clone();
        if nobody_sleeps && stands {
            state.set_word(state.key, false);
        }
        self.rest(&state);
    }

    fn pass_on(&mut self) {
        self.wake_one(|me, _| me.forget(At::Done));
    }
}

impl Model for Wake {
    type State = State;

    fn start(&self) -> State {
        let mut absent = Process::new(Role::Binder);
        absent.forget(At::Done);
        let mut processes = [absent; MAX_PROCESSES];
        for (process, &role) in processes.iter_mut().zip(self.roles) {
            *process = Process::new(role);
        }
        processes.sort_unstable();
        State { key: Key::Free, flag: false, processes }
    }

    fn steps(&self, state: &State, next: &mut Vec<State>) {
        for who in 0..MAX_PROCESSES {
            Turn { model: self, state, who, next }.step();
        }
    }

    /// Bells come first, and keep their places: others remember them by number.
    fn reduce(&self, state: &mut State) {
        let bells = state.processes.iter().filter(|process| process.role == Role::Bell).count();
        state.processes[bells..].sort_unstable();
    }

    fn found(&self, state: &State) -> Option<&'static str> {
        let all = |at: &[At]| state.processes.iter().all(|process| at.contains(&process.at));
        if state.processes.iter().any(|process| process.at == At::Wrong) {
            Some("an awaiter saw the end of a hold that lasts")
        } else if state.key != Key::Held && all(&[At::Done, At::Asleep]) && !all(&[At::Done]) {
            Some("somebody sleeps for a key that nobody holds")
        } else {
            None
        }
    }
}

impl Explain for Wake {
    fn explain(&self, before: &State, after: &State) -> String {
        let mut changes = Vec::new();
        for ((name, old), new) in ('A'..).zip(&before.processes).zip(&after.processes) {
            if old.at != new.at {
                changes.push(format!("{name} ({:?}): {:?} -> {:?}", old.role, old.at, new.at));
            }
        }
        if (before.key, before.flag) != (after.key, after.flag) {
            let flag = if after.flag { "with" } else { "without" };
            changes.push(format!("the word becomes {:?} {flag} flag", after.key));
        }
        changes.join("; ")
    }
}
