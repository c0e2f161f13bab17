# After the runs of commands.sh: the errors of occlusion.json, by the maps of plain training and by each network's own.
for run in cifar100-wrn-10-2-none-a0c70075 \
  cifar100-wrn-10-2-none-a982f869 \
  cifar100-wrn-10-2-mixup-20e88a10 \
  cifar100-wrn-10-2-cutmix-9a10df3e \
  cifar100-wrn-10-2-puzzlemix-1330c393 \
  cifar100-wrn-10-2-saliency-grafting-ae793f1a; do
  for seed in 0 1 2 3 4; do
    saligraft evaluate runs/all-classes/runs/$run/seed-$seed --occlude 12.5 --occlude 25 --reference runs/all-classes/runs/cifar100-wrn-10-2-none-a0c70075/seed-$seed
    saligraft evaluate runs/all-classes/runs/$run/seed-$seed --occlude 12.5 --occlude 25
  done
done
