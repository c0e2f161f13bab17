# After the runs of commands.sh: the errors of other-images.json, in the order of its rows.
for run in cifar100-pyramidnet-20-24-none-3cb7d287 \
  cifar100-pyramidnet-20-24-none-d651a356 \
  cifar100-pyramidnet-20-24-cutout-6d126211 \
  cifar100-pyramidnet-20-24-mixup-044d01ac \
  cifar100-pyramidnet-20-24-cutmix-51808d13 \
  cifar100-pyramidnet-20-24-attentive-cutmix-8549b09d \
  cifar100-pyramidnet-20-24-saliencymix-70dada6c \
  cifar100-pyramidnet-20-24-puzzlemix-2aa0eec1 \
  cifar100-pyramidnet-20-24-saliency-grafting-c657354c; do
  for seed in 0 1 2 3 4; do
    saligraft evaluate runs/laptop/runs/$run/seed-$seed --set data.held_out=true --set data.test_subset=450
  done
done
