"""The shell texts of the files' use cases. All POSIX sh, for bash, dash and busybox, with coreutils or busybox.

They come after ``HEAD``. Everything that a caller chose comes by the environment and is never parsed:
``ONCEBOX_PATH``, ``ONCEBOX_TOKEN`` (32 hex digits, made for each request) and what a text names. Each prints lines
``name=value``; the last one is ``end=`` and what came of it: ``ok``, or a reason of ``REASONS``. Bytes are in hex.
What stands between two ``@`` is filled in by `shell`.

A path is resolved by entering its directory (``cd -P``): what follows uses ``./NAME`` there, so that no path is too
long and nothing moves under it. ``.oncebox-up-TOKEN`` is an upload's own directory, beside its target; ``.way.TOKEN``
in the fence directory leads there by a name that holds nothing a daemon would expand. The way is made first: by it
leftovers are found.
"""

from __future__ import annotations

from typing import Literal, get_args

UPLOAD = ".oncebox-up-"
"""How the name of an upload's own directory begins: hidden from lists and archives, left alone by recursive deletes."""
STALE_UPLOAD = 600
"""Seconds after which an upload whose directory nothing came into has ended: a living one adds a piece a minute."""
STALE_WAY = 21_600
"""Seconds after which a way to a file, or an archive that is read, has ended."""
MOST_NAMES = 100_000
"""In a directory that is listed."""
ROOM = 20_000
"""Bytes of a page of a list, about: a small command's output holds three times as many, in hex."""

Reason = Literal[
    "missing", "notdir", "isdir", "notfile", "notempty", "above", "fence", "denied", "readonly", "full", "busy",
    "locked", "changed", "short", "lost", "loop", "toolong", "toomany", "kernel", "outside", "tool", "other",
]  # fmt: skip
REASONS = get_args(Reason)

# `enter` and `reach`: see above. `why` reads what a tool said: the error's own text stands last in it, so no file's
# name can pass for one. dash says nothing of why it can't enter a directory: `ls` is asked.
HEAD = r"""
LC_ALL=C; export LC_ALL; set +e +u; p=$ONCEBOX_PATH; undo=
hex() { od -An -v -tx1 | tr -d ' \n'; }
bytes() { case $2 in *[!A-Za-z0-9/._-]*|'') echo "$1=$(printf '%s' "$2" | hex)";; *) echo "$1==$2";; esac; }
clean() { cd /; [ -z "$l" ] || rmdir "$l"; [ ! -s "$w/pid" ] || kill "$(cat "$w/pid")"
c=$(readlink "$w/to" && echo .); c=${c%??}
case ${c##*/} in @UPLOAD@"$ONCEBOX_TOKEN") rm -rf "$c" "$w" || { chmod -R u+rwx "$c"; rm -rf "$c" "$w"; };;
*) rm -rf "$w";; esac; } 2>/dev/null
no() { [ -z "$undo" ] || clean; echo "end=$1"; exit 0; }
why() { case $1 in
*"No space left on device"|*"uota exceeded") no full;;
*"Permission denied"|*"peration not permitted") no denied;;
*"Read-only file system") no readonly;;
*"esource busy"|*"ext file busy") no busy;;
*"Not a directory") no notdir;; *"s a directory") no isdir;;
*"irectory not empty") no notempty;; *"File exists") no notdir;;
*"No such file or directory") no missing;;
*"ame too long") no toolong;;
*"ymbolic link loop"|*"levels of symbolic links") no loop;;
esac
echo "said=$(printf '%s' "$1" | tail -c 300 | hex)"; no other; }
lacks() { [ ! -d "$1" ] || no denied; why "$(ls -d "$1" 2>&1 >/dev/null)"; }
need() { for c; do command -v "$c" >/dev/null || { echo "tool=$c"; no tool; }; done; }
need stat readlink ls od tr rm
S='%f %s %u %g %d %i %Y %y|%Z %z|'
cd -P . 2>/dev/null; b=$PWD
f=$(cd -P @DIRECTORY@ 2>/dev/null && printf '%s.' "$PWD"); f=${f%.}; f=${f:-@DIRECTORY@}
l= w=$f/.way.$ONCEBOX_TOKEN
enter() { cd -P "$1" 2>/dev/null || lacks "$1"; }
reach() { m=; until cd -P "$1" 2>/dev/null; do
[ -z "$2" ] || lacks "$1"
if [ -e "$1" ] || [ -L "${1%/}" ]; then lacks "$1"; fi
case $1 in /|./) lacks "$1";; esac
c=${1%/}; case ${c##*/} in ..) no missing;; .|'') ;; *) m=${c##*/}/$m;; esac
set -- "${c%/*}/"; while :; do case $1 in ?*//) set -- "${1%/}";; *) break;; esac; done
done; }
resolve() { k=40 s=; while :; do
while :; do case $p in ?*/) p=${p%/} s=/;; *) break;; esac; done
case $p in */*) d=${p%/*}/ n=${p##*/};; *) d=./ n=$p;; esac
case $n in ''|.|..) d=$p n=;; esac
case $d in /*) ;; *) d=./$d;; esac
case $d in */) ;; *) d=$d/;; esac
reach "$d" "$2"
q=${PWD%/}/$m$n
[ "$n" ] && [ -z "$m" ] && [ -L "./$n" ] || break
[ "$1" ] || [ "$s" ] || break
[ $((k -= 1)) -gt 0 ] || no loop
p=$(readlink "./$n" && echo .) || lacks "./$n"; p=${p%??}
done
[ -z "$s" ] || [ -z "$n" ] || [ "$m" ] || [ ! -e "./$n" ] || [ -d "./$n" ] || no notdir; }
kept() { case $q/ in "$f"/*) no fence;; esac; }
about() { bytes base "$b"; bytes where "$q"; }
show() { c=$(stat -c "$S" "$1" 2>&1) || why "$c"; echo "stat=$c"
[ ! -L "$1" ] || echo "target=$(c=$(readlink "$1" && echo .); printf '%s' "${c%??}" | hex)"; }
aim() { printf '%s\n' "$1" >"$w/target" || no full; }
aimed() { q=; [ -e "$w/target" ] || no lost
while IFS= read -r c; do q=$q${q:+"
"}$c; done <"$w/target"; }
way() { undo=1; [ -d "$f" ] || c=$(mkdir -p -m 1777 "$f" 2>&1) || why "$c"
c=$(mkdir -m 755 "$w" 2>&1) || why "$c"; c=$(ln -s "$1" "$w/to" 2>&1) || why "$c"; }
"""

# What stands under the path itself: a link is not followed.
INFO = r"""
resolve '' all; kept; about
if [ "$n" ]; then [ -e "./$n" ] || [ -L "./$n" ] || lacks "./$n"; show "./$n"; else show .; fi
echo end=ok
"""

# A file to be read, links followed. `ONCEBOX_WAY`: one is wanted, where its path is more than plain ASCII.
READ = r"""
resolve follow all; kept; about
[ "$n" ] && [ ! -d "./$n" ] || no isdir
[ -e "./$n" ] || lacks "./$n"
[ -f "./$n" ] || no notfile
case $q in /proc/*|/sys/*) no kernel;; esac
[ -r "./$n" ] || no denied
show "./$n"
[ -z "$ONCEBOX_WAY" ] || case $q in *[!\ -~]*|*\$*) way "$q"; echo way=1;; esac
echo end=ok
"""

# An upload's directory, in the deepest directory that is there: of the same file system as the target will be.
PREPARE = r"""
need mkdir ln chmod mv cat
resolve follow; kept; about
[ "$n" ] && [ -z "$s" ] || no isdir
if [ -z "$m" ] && [ -e "./$n" ]; then
[ ! -d "./$n" ] || no isdir
[ -f "./$n" ] || no notfile
[ -w "./$n" ] || no denied
show "./$n"; fi
case $q in /proc/*|/sys/*) no kernel;; esac
u=${PWD%/}/@UPLOAD@$ONCEBOX_TOKEN
way "$u"
aim "$q"
c=$(mkdir -m 700 "./@UPLOAD@$ONCEBOX_TOKEN" 2>&1) || why "$c"
[ -d "$w/to/" ] || no denied
echo end=ok
"""

# The pieces up to number ONCEBOX_UPTO, all of them there, put behind those that were joined before. ONCEBOX_OWN: they
# are another user's, so the first is copied like all others; else it is the beginning.
JOIN = r"""
join() { [ $# -gt 0 ] || return; if [ ! -e whole ] && [ -z "$ONCEBOX_OWN" ]; then mv "$1" whole; shift; fi
[ $# = 0 ] || { c=$( { cat "$@" >>whole; } 2>&1) || why "$c"; rm -f "$@"; }; }
cd -P "$w/to" 2>/dev/null || no lost
"""
APPEND = (
    JOIN
    + r"""
set --; for p in [0-9]*; do [ "${p%%.*}" -gt "$ONCEBOX_UPTO" ] || set -- "$@" "$p"; done
join "$@"; echo end=ok
"""
)

# ONCEBOX_SIZE: bytes of all pieces. ONCEBOX_MODE: octal, or nothing. ONCEBOX_MATCH: nothing, `none` (no file may be
# there), or the `stat` (with $S) of the one that must be.
# What was joined is renamed under a lock of the directory, so that of two who ask for the same state only one finds it.
FINISH = (
    "undo=1"
    + JOIN
    + r"""
u=$PWD x=whole
case $u in */@UPLOAD@"$ONCEBOX_TOKEN") ;; *) no lost;; esac
set -- [0-9]*; [ -e "$1" ] || set --
if [ $# = 1 ] && [ ! -e whole ] && [ -z "$ONCEBOX_OWN" ]; then x=$1
else join "$@"; [ -e whole ] || c=$({ : >whole; } 2>&1) || why "$c"; fi
aimed; d=${q%/*}/ n=${q##*/}
[ -d "$d" ] || c=$(mkdir -p "$d" 2>&1) || why "$c"
enter "$d"; [ "${PWD%/}/" = "$d" ] || no changed
set -- $(stat -c '%d.%i %s %u:%g %a' . "$w/to/$x")
[ "$6" = "$ONCEBOX_SIZE" ] || no short
k=$f/.lock.$1 o="$7 $8" t=0
until c=$(mkdir "$k" 2>&1); do
case $c in *"File exists") ;; *) why "$c";; esac
[ $((t += 1)) -lt 60 ] || no locked
[ $(($(date +%s) - $(stat -c %Y "$k" 2>/dev/null || date +%s))) -lt 30 ] || rmdir "$k" 2>/dev/null
sleep 0.05 2>/dev/null || { sleep 1; t=$((t + 19)); }
done; l=$k
[ ! -d "./$n" ] || no isdir
c=; set -- "${o% *}" 644; [ ! -e "./$n" ] || { c=$(stat -c "$S%u:%g %a" "./$n"); set -- ${c##*|}; c=${c%|*}\|; }
case $ONCEBOX_MATCH in '') ;; none) [ -z "$c" ] && [ ! -L "./$n" ] || no changed;;
*) [ "$c" = "$ONCEBOX_MATCH" ] || no changed;; esac
if [ "$1" != "${o% *}" ] || [ "${ONCEBOX_MODE:-$2}" != "${o#* }" ]; then
[ "$1" = "${o% *}" ] || o=$(chown "$1" "$w/to/$x" 2>&1) || why "$o"
o=$(chmod "${ONCEBOX_MODE:-$2}" "$w/to/$x" 2>&1) || why "$o"; fi
o=$(mv -fT "$w/to/$x" "./$n" 2>&1) || case $o in
*nrecognized*|*nvalid*) [ ! -d "./$n" ] || no isdir
o=$(mv -f "$w/to/$x" "./$n" 2>&1) || why "$o";; *) why "$o";; esac
[ "$c" ] && echo made=0 || echo made=1
show "./$n"; cd /; rm -rf "$l" "$u" "$w" 2>/dev/null
echo end=ok
"""
)

ABORT = r"""
clean; echo end=ok
"""

MKDIR = r"""
need mkdir chmod
resolve follow; kept; about
if [ -z "$n" ]; then echo made=0; show .; echo end=ok; exit 0; fi
if [ "$m" ] || [ ! -e "./$n" ]; then
[ -z "$m" ] || { c=$(mkdir -p "./$m" 2>&1) || why "$c"; enter "./$m"; }
if c=$(mkdir "./$n" 2>&1); then
echo made=1; c=$(chmod "$ONCEBOX_MODE" "./$n" 2>&1) || why "$c"; show "./$n"; echo end=ok; exit 0; fi
[ -d "./$n" ] || why "$c"; fi
[ -d "./$n" ] || no notdir
echo made=0; show "./$n/."; echo end=ok
"""

# Of a link, the link. What uploads have under way below a directory stays, with the directories around it.
REMOVE = r"""
resolve '' all
if [ -z "$n" ]; then q=$PWD; [ "$q" != / ] || no above; n=${q##*/}; enter ../; fi
kept; about
[ -e "./$n" ] || [ -L "./$n" ] || lacks "./$n"
if [ -d "./$n" ] && [ ! -L "./$n" ]; then
case $f/ in "$q"/*) no above;; esac
if [ -z "$ONCEBOX_RECURSIVE" ]; then need rmdir; c=$(rmdir "./$n" 2>&1) || why "$c"
elif command -v find >/dev/null && [ "$(find "./$n" -name '@UPLOAD@*' -prune -print 2>/dev/null | head -c 1)" ]; then
find "./$n" -depth ! -path '*/@UPLOAD@*' \( -type d -exec rmdir {} \; -o -exec rm -f {} \; \) 2>/dev/null
[ -z "$(find "./$n" ! -type d ! -path '*/@UPLOAD@*' 2>/dev/null | head -c 1)" ] || no denied
else c=$(rm -rf "./$n" 2>&1) || why "$c"; fi
else c=$(rm -f "./$n" 2>&1) || why "$c"; fi
echo end=ok
"""

# Names are lines, a line end in one being `/`, which no name has; so they are sorted as bytes. ONCEBOX_AFTER:
# such a line, each byte as `\NNN`.
# For each of the page's a line of `stat` with `./NAME` behind it, then NUL, then links: NAME NUL TARGET NUL.
LIST = r"""
need sort grep head tail stat
resolve follow all; kept; about
[ -z "$n" ] || enter "./$n/"
q=$PWD; case $q/ in "$f"/*) no fence;; esac
[ -r . ] && [ -x . ] || no denied
set -- * .[!.]* ..?*
k=$#; [ $k -le @MOST@ ] || for n; do
case $n in '*'|'.[!.]*'|'..?*') [ -e "./$n" ] || [ -L "./$n" ] || k=$((k - 1));; esac; done
[ $k -le @MOST@ ] || no toomany
names() { for n; do case $n in @UPLOAD@*) continue;;
'*'|'.[!.]*'|'..?*') [ -e "./$n" ] || [ -L "./$n" ] || continue;; esac
[ "${PWD%/}/$n" != "$f" ] || continue
printf '%s\0' "$n"; done | tr '\n\0' '/\n'; }
a=$(printf "$ONCEBOX_AFTER."); a=${a%.}
after() { if [ -z "$a" ]; then names "$@" | sort
else k=$({ names "$@"; printf '%s\n' "$a"; } | sort -u | grep -nxF -e "$a" | head -n 1)
{ names "$@"; printf '%s\n' "$a"; } | sort -u | tail -n +$((${k%%:*} + 1)); fi; }
page=$(after "$@" 2>/dev/null | head -n $((ONCEBOX_PAGE + 1)); echo .)
page=${page%.}
set --; k=0 t=0; while [ "$page" ]; do
if [ $k -ge $ONCEBOX_PAGE ] || [ $t -gt @ROOM@ ]; then echo more=1; break; fi
n=${page%%"
"*}; page=${page#*"
"} k=$((k + 1))
case $n in */*) n=$(printf '%s.' "$n" | tr / '\n'); n=${n%.};; esac
set -- "$@" "./$n"; t=$((t + ${#n} + 100))
[ ! -L "./$n" ] || { c=$(readlink "./$n"); t=$((t + ${#n} + ${#c})); }; done
printf page=
{ [ $# = 0 ] || stat -c "$S%n" "$@" 2>/dev/null; printf '\0'
for n; do [ ! -L "$n" ] || { c=$(readlink "$n" && echo .); printf '%s\0%s\0' "${n#./}" "${c%??}"; }; done; } | hex
echo; echo end=ok
"""

# What replicas that are gone have left in this sandbox; `left` says how many ways are still there.
SWEEP = r"""
now=$(date +%s); k=0
old() { c=$(stat -c %Y "$1" 2>/dev/null) && [ $((now - c)) -gt $2 ]; }
for w in "$f"/.way.*; do [ -d "$w" ] || continue
ONCEBOX_TOKEN=${w##*.way.}
c=$(readlink "$w/to" && echo .); c=${c%??}
case ${c##*/} in @UPLOAD@*) if [ -e "$w/to/unpacking" ]; then old "$w" @STALEWAY@
elif [ -d "$w/to" ]; then old "$w/to/." @STALEUPLOAD@; else old "$w" @STALEUPLOAD@; fi;;
*) old "$w" @STALEWAY@;; esac && clean || k=$((k + 1)); done
for w in "$f"/.lock.*; do old "$w" 60 && rmdir "$w" 2>/dev/null; done
echo "left=$k"; echo end=ok
"""

# -- archives

# As PREPARE, but for a directory: beside one that is not there, and in one that is, which may be a mount point.
PREPARE_UNPACK = r"""
need tar mkdir ln chmod mv cat
resolve follow; kept; about
u=
if [ -z "$n" ] || [ -d "./$n" ]; then [ -z "$n" ] || enter "./$n/"; q=$PWD; kept
elif [ -z "$m" ] && [ -e "./$n" ]; then no notdir; fi
case $q in /proc|/proc/*|/sys|/sys/*) no kernel;; esac
u=${PWD%/}/@UPLOAD@$ONCEBOX_TOKEN
way "$u"
aim "$q"
c=$(mkdir -m 700 "./@UPLOAD@$ONCEBOX_TOKEN" 2>&1) || why "$c"
[ -d "$w/to/" ] || no denied
echo end=ok
"""

# A job of its own: it prints to whoever follows it, and its exit code says how it ended. Before it stand lines that
# set ONCEBOX_TOKEN, ONCEBOX_FILES (members that are no directories), ONCEBOX_ROOT (the directory's own mode, or
# nothing) and ONCEBOX_PATH. What is unpacked is put in place by renames: all at once where no directory was, else each
# name of the archive that is not a directory there already.
UNPACK = r"""
no() { [ -z "$undo" ] || clean; echo "end=$1"; echo "oncebox: not unpacked: $1" >&2; exit 1; }
undo=1
aimed; cd -P "$w/to" 2>/dev/null || no lost
t=$PWD; : >unpacking; mkdir stage || no full
over() { cd /; rm -rf "$t" "$w" 2>/dev/null || clean; echo end=ok; exit 0; }
set -- [0-9]*
c=$( { if [ $# = 1 ]; then tar -xpof - -C stage <"$1"; else cat "$@" | tar -xpof - -C stage; fi; } 2>&1) || case $c in
*"No space left on device"*|*"uota exceeded"*) no full;; *"Permission denied"*) no denied;; *) why "$c";; esac
d=${q%/*}/ n=${q##*/}
if [ ! -e "$q" ] && [ ! -L "$q" ]; then
[ -d "$d" ] || c=$(mkdir -p "$d" 2>&1) || why "$c"
enter "$d"; [ "${PWD%/}/" = "$d" ] || no changed
[ "$ONCEBOX_ROOT" ] || ONCEBOX_ROOT=755
c=$(chmod "$ONCEBOX_ROOT" "$t/stage" 2>&1) || why "$c"
c=$(mv -fT "$t/stage" "./$n" 2>&1) || case $c in
*nrecognized*|*nvalid*) [ ! -e "./$n" ] || no changed; c=$(mv "$t/stage" "./$n" 2>&1) || why "$c";; *) why "$c";; esac
over; fi
each() { for x in "$t/stage/$1"* "$t/stage/$1".[!.]* "$t/stage/$1"..?*; do
[ -e "$x" ] || [ -L "$x" ] || continue; look "$1" "${x##*/}"; done; }
folder() { [ -d "$1" ] && [ ! -L "$1" ]; }
look() { if folder "$t/stage/$1$2"; then
if [ -e "$q/$1$2" ] || [ -L "$q/$1$2" ]; then
[ -d "$q/$1$2" ] || no notdir
cd -P "$q/$1$2" 2>/dev/null || no denied
case $PWD/ in "${q%/}"/*) ;; *) no outside;; esac
case $PWD/ in "$f"/*) no fence;; esac
[ -w . ] || no denied
each "$1$2/"; fi
elif [ -d "$q/$1$2" ] && [ ! -L "$q/$1$2" ]; then no isdir; fi; }
left() { find "$t/stage" ! -type d -exec sh -c 'for x; do printf .; done' sh {} + 2>/dev/null | wc -c; }
put() { d=$1; shift; c=$(mv -f "$@" "$q/$d" 2>&1) || { echo "placed=$((ONCEBOX_FILES - $(left)))"; why "$c"; }; }
place() { for x in "$t/stage/$1"* "$t/stage/$1".[!.]* "$t/stage/$1"..?*; do
[ -e "$x" ] || [ -L "$x" ] || continue
if folder "$x" && [ -d "$q/$1${x##*/}" ]; then chmod u+rwx "$x"; place "$1${x##*/}/"; continue; fi
set -- "$@" "$x"; [ $# -le 200 ] || { put "$@"; set -- "$1"; }; done
[ $# = 1 ] || put "$@"; }
each ''
place ''
over
"""

# The tar of a directory, made in the way while it is read. What takes long goes on behind: `more`.
PACK = r"""
need tar mkdir chmod
resolve follow all; kept; about
[ -z "$n" ] || enter "./$n/"
q=$PWD; kept
case $q in /proc|/proc/*|/sys|/sys/*|/dev|/dev/*) no kernel;; esac
[ -r . ] && [ -x . ] || no denied
way .
set -- --exclude='@UPLOAD@*'
case $f in "${q%/}"/*) set -- "$@" "--exclude=.${f#"${q%/}"}";; esac
[ "$q" != / ] || set -- "$@" --exclude=./proc --exclude=./sys --exclude=./dev
c=$(tar --exclude=x -cf /dev/null -C "$w" to 2>&1) || case $c in
*nrecognized*|*nvalid*|*nknown*) [ $# = 1 ] && ! { find . -name '@UPLOAD@*' | head -c 1 | grep -q .; } || {
echo "tool=tar --exclude"; no tool; }; set --;; esac
gnu=; case $(tar --version 2>/dev/null) in *GNU*) gnu=1; set -- --hard-dereference "$@";; esac
{ tar -cf "$w/tar" "$@" . 2>"$w/said" & echo $! >"$w/pid"; wait $!; c=$?
[ $c = 1 ] && [ "$gnu" ] && c=0
echo $c >"$w/code"; mv "$w/code" "$w/end"; } >/dev/null 2>&1 &
t=0; until [ -e "$w/end" ]; do
[ $((t += 1)) -lt 100 ] || { echo more=1; echo end=ok; exit 0; }
sleep 0.05 2>/dev/null || { sleep 1; t=$((t + 19)); }; done
read -r c <"$w/end"
[ "$c" = 0 ] || { c=$(cat "$w/said"); case $c in
*"No space left on device"*|*"uota exceeded"*) no full;; *"Permission denied"*) no denied;; *) why "$c";; esac; }
echo "size=$(stat -c %s "$w/tar")"; echo end=ok
"""
