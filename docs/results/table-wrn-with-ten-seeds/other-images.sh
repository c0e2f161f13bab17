# After the runs of commands.sh: the errors of other-images.json, in the order of its rows.
for run in cifar100-wrn-10-2-none-f4890e7d \
  cifar100-wrn-10-2-none-85af4cf3 \
  cifar100-wrn-10-2-mixup-f52254d2 \
  cifar100-wrn-10-2-cutmix-5d2d6f6f \
  cifar100-wrn-10-2-saliencymix-f3028475 \
  cifar100-wrn-10-2-puzzlemix-06fc4bfe \
  cifar100-wrn-10-2-saliency-grafting-7859a5a9; do
  for seed in 0 1 2 3 4 5 6 7 8 9; do
    saligraft evaluate runs/fp32/runs/$run/seed-$seed --set data.held_out=true --set data.test_subset=450
  done
done
