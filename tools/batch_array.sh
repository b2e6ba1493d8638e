#!/bin/bash
# Spreads one file of `riffle batch` over the tasks of a Slurm job array.
#
#   sbatch --array=1-8 tools/batch_array.sh 8 questions.jsonl answers.jsonl -m model.gguf --max-seqs 16
#   cat answers.jsonl.part-* > answers.jsonl        # when all are done
#
# usage: batch_array.sh PARTS INPUT OUTPUT [flags of riffle batch]. Task I answers part I of PARTS
# into OUTPUT.part-000000I; the parts one after the other hold the answers of a single run. If a
# task was preempted, killed or out of time, submit the same command again: it goes on where it
# stopped (--array=3 submits the third task alone; with sbatch --requeue, Slurm does this by
# itself). A task whose part has a failed line ends with exit code 6, which Slurm shows as FAILED;
# its part is complete all the same. RIFFLE: the program, if it is not on the PATH.
#SBATCH --job-name=riffle
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
parts=${1:?usage: batch_array.sh PARTS INPUT OUTPUT [flags]} input=${2:?INPUT is missing} output=${3:?OUTPUT is missing}
shift 3
# exec: so that Slurm's SIGTERM reaches riffle, which then writes the finished answers.
exec "${RIFFLE:-riffle}" batch -i "$input" -o "$output.part-$(printf %07d "$SLURM_ARRAY_TASK_ID")" \
  --shard "$SLURM_ARRAY_TASK_ID/$parts" "$@"
