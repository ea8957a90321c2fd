#error "emulated: floats of 8 bits are not emulated"
