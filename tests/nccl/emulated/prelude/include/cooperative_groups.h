#error "emulated: cooperative groups are not emulated"
