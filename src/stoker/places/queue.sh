# shellcheck shell=bash disable=SC2154  # `run`, `train`, `join`, `fruitless_most` stand above, in the run's own part
# From here on every job of Stoker's is the same. Above: `run`, its folder; `train`, the command; what it may take; and in
# a job of several nodes `join`, the command of those that are not the first.

# When the queue takes the node back: the supervisor keeps time for a last checkpoint. Slurm says it itself from 23.02.
end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null)
ends=$(date --date="$end" +%s 2>/dev/null)
case $end in
  20*) STOKER_DEADLINE=$(date --date="$end" +%Y-%m-%dT%H:%M:%S%:z) && export STOKER_DEADLINE ;;
  *) ends= ;;  # no end is known
esac

# A word of supervisor.json, and a line about this job for who looks later.
said() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" "$run/supervisor.json" 2>/dev/null; }
committed() { said committed_step | grep . || echo 0; }
note() { echo "$SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $(date +%s) $before $(committed) $*" >>"$run/slurm/jobs"; }
before=$(committed)
note started

# USR1 comes before the time limit: commit, and go on in the next job. TERM after it: the same, as far as there is time.
# TERM before it says that somebody cancelled the job, or that it was preempted: commit and end; what is preempted Slurm
# puts back into the queue itself.
asked=
trap 'asked=limit' USR1
trap 'if [ "$ends" ] && [ "$(date +%s)" -ge "$ends" ]; then asked=limit; else asked=cancelled; fi' TERM

# The first node trains as ever; on each other one somebody takes part who does as the first says.
joins=
if [ "${join[*]}" ]; then
  export STOKER_NODE=$SLURMD_NODENAME STOKER_MEETING=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
  others=$((SLURM_JOB_NUM_NODES - 1))
  # shellcheck disable=SC2016  # for the shell there
  srun --nodes="$others" --ntasks="$others" --ntasks-per-node=1 --exclude="$STOKER_NODE" --export=ALL --input=none \
    --cpu-bind=none --kill-on-bad-exit=0 --no-kill --wait=0 \
    bash -c 'trap "" TERM; STOKER_NODE=$SLURMD_NODENAME exec "$@"' join "${join[@]}" &
  joins=$!
fi

# TERM goes to every process of a job. Who waits for the supervisor must not die of it.
(trap '' TERM; exec "${train[@]}") &
pid=$!
while kill -0 "$pid" 2>/dev/null; do
  wait "$pid"  # until it has ended, or a signal came
  while [ "$asked" ] && kill -0 "$pid" 2>/dev/null; do
    touch "$run/stop"  # ends after the step that is being done, with a committed checkpoint
    sleep 1
  done
done
wait "$pid"
code=$?
[ -z "$joins" ] || kill "$joins" 2>/dev/null  # nobody is left to tell them what to do

# 75 is: stopped, and the newest checkpoint stands. Everything else is over: done, or for somebody to look at.
again=no
if [ "$code" = 75 ]; then
  case $asked:$(said asked) in
    limit:* | :deadline | :notice) again=yes ;;
  esac
fi
[ ! -e "$run/slurm/end" ] || again=no  # `stoker stop`
if [ $again = no ]; then
  note ended "$code" "${asked:-by-itself}"
  exit "$code"
fi

# So many jobs in a row without a newer checkpoint: the next one would not get further either.
fruitless=0
if [ "$(committed)" -le "$before" ]; then
  fruitless=$(($(cat "$run/slurm/fruitless" 2>/dev/null || echo 0) + 1))
fi
echo "$fruitless" >"$run/slurm/fruitless"
if [ "$fruitless" -ge "$fruitless_most" ]; then
  note fruitless "$code"
  exit 1
fi

# The same job once more; where that is not allowed, another one that follows it. The requeue ends every process of this
# job by TERM, and would end who asks for it before he has his answer.
note requeue
(trap '' TERM; exec scontrol requeue "$SLURM_JOB_ID") && exit 0
follow=(env -u SLURM_RESTART_COUNT sbatch --parsable --dependency="afterany:$SLURM_JOB_ID" "$run/slurm/job.sh")
next=$("${follow[@]}") && note next "$next" && exit 0
note refused "$code"
exit "$code"
