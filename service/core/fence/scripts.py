"""The shell texts of `service.core.fence.protocol`, which fills in what stands between two ``@``. All POSIX sh."""

# -- the wrapper: BEGIN, COMPARE, MAKE, COMPARE, FILL, PREPARE, a RUN, NOTE, by `eval` of what ONCEBOX_FENCE holds;
# -- without a mark BEGIN, COMPARE, PREPARE, a RUN. Whatever it opens for the command stands around all that follows
# -- the first COMPARE: OPEN_INPUT, OPEN_APART

# $1 becomes the fence, $2 the output's path, $3 the caller's command. The substitution with readlink comes before
# any redirection: busybox runs readlink inside the shell; the caller's PATH may not lead to one. Only regular builtins
# (true, read, printf) stand before redirections that may fail: on `:` or `exec` these end the shell.
BEGIN = r"""
set -- @FENCE@ "$({ readlink /proc/$$/fd/1 || command -p readlink /proc/$$/fd/1; } 2>/dev/null)" "$ONCEBOX_COMMAND"
"""

# Before the fence is made and again after it: a mark never comes back, so in between nobody wiped the directory,
# an earlier copy of this submission that runs included. Where this user can't see whether there is a mark (it may not
# read it, or not search a directory above it), there is no fence to be had.
COMPARE = r"""
ONCEBOX_FENCE=; { read -r ONCEBOX_FENCE <"${1%/*}/boot"; } 2>/dev/null
[ "$ONCEBOX_FENCE" = @BOOT@ ] || {
ONCEBOX_FENCE=${1%/*}/boot; [ -r "$ONCEBOX_FENCE" ] || {
until [ -e "${ONCEBOX_FENCE:=/}" ]; do ONCEBOX_FENCE=${ONCEBOX_FENCE%/*}; done
[ -d "$ONCEBOX_FENCE" ] && [ -x "$ONCEBOX_FENCE" ]; } && ONCEBOX_FENCE=boot || ONCEBOX_FENCE=none
echo "oncebox-fence ${1##*/} $ONCEBOX_FENCE"; @UNDO@exit @NOTHING@; }
"""

# Made empty (noclobber is O_EXCL), filled in a second step: a full disk must not look like a lost race.
MAKE = r"""
set -C
{ true >"$1"; } 2>/dev/null || {
ONCEBOX_FENCE=none
[ ! -e "$1" ] || { ONCEBOX_FENCE=; read -r ONCEBOX_FENCE <"$1"; } 2>/dev/null
echo "oncebox-fence ${1##*/} $ONCEBOX_FENCE"; @UNDO@exit @NOTHING@; }
set +C
"""

FILL = r"""
printf 'fp=%s\ntimeout=%s\npid=%s\n@APART@log=%s\n' @FINGERPRINT@ @TIMEOUT@ $$ "$2" 2>/dev/null >>"$1"
"""

# The shell is the one that runs this (execd chose it), found without the caller's PATH where that can be done: bash
# and newer busybox know `exec -a`. Those two (not dash) have `[[`, and count how deep shells are nested. The handler,
# not an ignore, which is inherited, lets the wrapper outlive the command's own trap: execd kills the group when the
# first process ends.
PREPARE = r"""
unset ONCEBOX_FENCE ONCEBOX_COMMAND
set -- "$1" "$3" "$0"
if command -v shopt >/dev/null && [ -e /proc/$$/exe ]; then set -- "$1" "$2" "-a $0 /proc/$$/exe"
elif command -v "$0" >/dev/null; then :
elif command -v '[[' >/dev/null; then set -- "$1" "$2" "-a $0 /proc/$$/exe"
else set -- "$1" "$2" "/bin/$0" "$0"; fi
! command -v '[[' >/dev/null || SHLVL=$((SHLVL - 1))
trap : HUP INT TERM
"""

# stderr is put aside for the shell's own "Killed", and for what it says of a file that it can't open.
ASIDE = r"""
exec 3>&2 2>/dev/null
"""

# The command's input. Around a group, since a redirection that fails ends the shell after `exec`, and after a group
# does not. No FIFO: opening one may take for ever.
OPEN_INPUT = r"""
[ -f @INPUT@ ] && {
@INNER@
} <@INPUT@
echo "oncebox-fence ${1##*/} input"; @UNDO@exit @NOTHING@
"""

# Its stderr, in a file beside the log; the log itself then has its stdout alone. Takes the place of ASIDE.
OPEN_APART = r"""
exec 2>/dev/null
case $2 in /*.output) {
@INNER@
} 3>"${2%.output}.stderr";; esac
echo "oncebox-fence ${1##*/} apart"; exit @NOTHING@
"""
UNDO_APART = 'command -p rm -f "${2%.output}.stderr"; '

# `(exec ...)` because dash applies a command's redirections in the waiting shell.
RUN = r"""
(exec $3 -c "$2" ${4+"$4"} 2>&3 3>&-); set -- "$1" $?
"""

# With startup variables as they were. The carriers are the caller's no more than our other two variables.
RUN_EXPORTED = r"""
(@EXPORT@; unset @CARRIERS@; exec $3 -c "$2" ${4+"$4"} 2>&3 3>&-); set -- "$1" $?
"""

# Functions and options are bash's alone, and bash sets none that way: `env` does, which knows no `-a`, so the shell is
# the one that PATH leads to, where that is this one, else this one under another path. Other shells drop functions
# from what they inherit, and take those names of options for any others.
RUN_WITH_ENV = r"""
(if command -v shopt >/dev/null; then
set -- "$0" -c "$2"
[ ! -e /proc/$$/exe ] || [ "$(command -v "$0")" -ef /proc/$$/exe ] || set -- /proc/$$/exe -c "$3" "$0"
set -- "$(command -v env || echo /usr/bin/env)" @KEPT@ "$@"
else @EXPORT@; set -- $3 -c "$2" ${4+"$4"}; fi
unset @CARRIERS@; exec "$@" 2>&3 3>&-); set -- "$1" $?
"""

# A list of words, quoted, as a program and its arguments: no shell of the caller's, so nothing that one acts on. dash's
# `exec` knows no `--`, and takes no options. bash's counts the shell that it ends, busybox's does not.
RUN_WORDS = r"""
! command -v '[[' >/dev/null || set -- "$1" "-- $2"
command -v shopt >/dev/null || ! command -v '[[' >/dev/null || SHLVL=$((SHLVL + 1))
(@EXPORT@; unset @CARRIERS@; eval "exec $2 2>&3 3>&-"); set -- "$1" $?
"""

RUN_WORDS_WITH_ENV = r"""
(eval "set -- $2"
if command -v shopt >/dev/null; then set -- "$(command -v env || echo /usr/bin/env)" @KEPT@ "$@"; else @EXPORT@; fi
unset @CARRIERS@; exec "$@" 2>&3 3>&-); set -- "$1" $?
"""

# On a line of its own, whatever a full disk left of the lines before. A failure costs the note, not the run.
NOTE = r"""
printf '\nexit=%s\n' $2 >>"$1"
"""

# -- our own small commands: HEAD and one of the others

# A mark and a void are for every user to read, and directories above them to search, whatever the daemon's umask.
# Field 22 of /proc/1/stat, counted from behind the last ")": the name before it may hold anything.
HEAD = r"""
umask 022; d=@DIRECTORY@ f=$d/@TOKEN@ t=$d/.tmp.@RANDOM@ b= w= s=
{ read -r s </proc/1/stat; } 2>/dev/null
set -- ${s##*) }; s=${20:-0}
mark() { b=; { read -r b <"$d/boot"; } 2>/dev/null; echo "boot=$b"; echo "start=$s"; }
can_find() { [ -r /proc/self/cmdline ] && command -v grep >/dev/null; }
find_token() { w=$(LC_ALL=C grep -ls '@PATTERN@' /proc/[0-9]*/cmdline 2>/dev/null); [ "$w" ]; }
"""

# What was written is read again before `ln` shows it: a full disk must not leave half a mark. The directory
# is everybody's, like /tmp: where sandboxes share one, they may belong to different users.
READY = r"""
[ -s "$d/boot" ] || {
mkdir -p -m 1777 "$d" && echo "@RANDOM@ $s" >"$t" && read -r w <"$t" &&
[ "$w" = "@RANDOM@ $s" ] && ln "$t" "$d/boot"
rm -f "$t"; } >/dev/null 2>&1
mark; exit 0
"""

# The mark is compared again when the void stands: a job that wipes the directory in between, together with a
# dispatch that makes a new mark, would else have us void a command that ran.
VOID = r"""
v=error; { read -r b <"$d/boot"; } 2>/dev/null
[ "$b" != @BOOT@ ] || [ -e "$f" ] || {
echo @VOID@ >"$t" && read -r w <"$t" && [ "$w" = @VOID@ ] && ln "$t" "$f"
rm -f "$t"; } >/dev/null 2>&1
w=$(head -c @SHOWN@ "$f" 2>/dev/null); mark
if [ "$b" != @BOOT@ ]; then v=boot; elif [ "$w" = @VOID@ ]; then v=voided; elif [ -e "$f" ]; then v=run; fi
echo "void=$v"; [ $v != run ] || { echo fence:; head -c @SHOWN@ "$f" 2>/dev/null; echo .; }; exit 0
"""

# Processes first, then the fence: a run that ends in between has noted its exit code by then. A fence that
# appeared meanwhile belongs to a process that was not yet there to be found: look again.
LOOK = r"""
n=; [ -e "$f" ] || n=1
if can_find; then
find_token; [ -z "$n" ] || [ ! -e "$f" ] || find_token
echo "found=$(for p in $w; do p=${p#/proc/}; echo ${p%/*}; done | tr '\n' ' ')"
fi
mark; [ ! -e "$f" ] || { echo fence:; head -c @SHOWN@ "$f" 2>/dev/null; echo .; }; exit 0
"""

# As execd's interrupt does it: SIGTERM to the group, up to 3 s, SIGKILL, also for what the first process
# left. A group is ended only where its leader carries the token; else (no groups of ours here) the process
# alone. SIGKILL takes effect after `kill` has returned, later still in a process that waits for a disk: ended is
# what can no longer be found. Zombies that nobody reaps still take signals, so the wait for a whole group is short.
# `--` before a group is needed for dash's -s, counts as an error in busybox, and is no number to dash's -0.
END = r"""
can_find || { echo end=error; exit 0; }
find_token || {
p=; while read -r w; do case $w in pid=*) p=${w#pid=};; esac; done <"$f"
[ "$p" ] && [ -e "/proc/$p" ] && echo end=not_ours || echo end=gone; exit 0; } 2>/dev/null
g=; for p in $w; do
s=; { read -r s <"${p%/*}/stat"; } 2>/dev/null; set -- ${s##*) }; p=${p#/proc/}; p=${p%/*}
[ "$3" != "$p" ] || p=-$p; g="$g $p"; done
all() { for p in $g; do kill -s $1 -- $p; done 2>/dev/null; }
left() { for p in $g; do kill -0 $p && return 0; done 2>/dev/null; return 1; }
wait_while() { n=0; while "$1" && [ $n -lt $2 ]; do
n=$((n + 1)); sleep 0.1 2>/dev/null || { sleep 1; n=$((n + 9)); }; done; }
all TERM; wait_while find_token 30
all KILL; wait_while left 10
find_token && echo end=error || echo end=ended; exit 0
"""

CLEAN = r"""
can_find && cd "$d" 2>/dev/null || exit 0
for n in $(find @TOKENS@ -type f -mmin +@MINUTES@ 2>/dev/null); do
p=${n%?}; LC_ALL=C grep -qs "$p[${n#"$p"}]" /proc/[0-9]*/cmdline && continue
p=; while read -r w; do case $w in log=/*) p=${w#log=};; esac; done <"$n"
case $p in *.output) rm -f "$p" "${p%.output}.stderr";; *.stdout) rm -f "$p" "${p%.stdout}.stderr";; esac
rm -f "$n" && echo "cleaned=$n"; done 2>/dev/null
find . @OUTPUTS@ -type f -mmin +@MINUTES@ \( -path './.tmp.*' -o -path '/*' \) -exec rm -f {} + 2>/dev/null
find . -type f -mmin +@INPUT_MINUTES@ -path './.in.*' -exec rm -f {} + 2>/dev/null
exit 0
"""
