#error "emulated: tensor cores are not emulated"
