//! Keys as bytes: order-preserving (`a < b` exactly when `encode(a) < encode(b)`) and self-delimiting
//! (no encoding is a prefix of another), so tuples are plain concatenation.

use crate::KeyError;

/// A type that can be a key or a part of one.
pub trait KeyCodec: Sized {
    /// Appends the encoding to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads one key off the front of `input`.
    fn decode(input: &mut &[u8]) -> Result<Self, KeyError>;

    /// The encoding alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        self.encode(&mut out);
        out
    }

    /// Decodes a whole key; trailing bytes are an error.
    fn from_bytes(mut input: &[u8]) -> Result<Self, KeyError> {
        let key = Self::decode(&mut input)?;
        if input.is_empty() { Ok(key) } else { Err(KeyError::Trailing) }
    }
}

/// Marks `P` as a leading part of the key `Self`.
pub trait HasPrefix<P> {}

fn take<'a>(input: &mut &'a [u8], n: usize) -> Result<&'a [u8], KeyError> {
    let (head, tail) = input.split_at_checked(n).ok_or(KeyError::Short)?;
    *input = tail;
    Ok(head)
}

macro_rules! unsigned {
    ($($t:ty),*) => {$(
        impl KeyCodec for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
                let bytes = take(input, size_of::<$t>())?;
                Ok(<$t>::from_be_bytes(bytes.try_into().map_err(|_| KeyError::Short)?))
            }
        }
    )*};
}
unsigned!(u8, u16, u32, u64, u128);

macro_rules! signed {
    ($($t:ty => $u:ty),*) => {$(
        // The flipped sign bit puts negative numbers first.
        impl KeyCodec for $t {
            fn encode(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ (1 << (<$u>::BITS - 1))).encode(out);
            }
            fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
                Ok((<$u>::decode(input)? ^ (1 << (<$u>::BITS - 1))).cast_signed())
            }
        }
    )*};
}
signed!(i32 => u32, i64 => u64);

impl KeyCodec for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(KeyError::Invalid),
        }
    }
}

impl KeyCodec for () {
    fn encode(&self, _out: &mut Vec<u8>) {}
    fn decode(_input: &mut &[u8]) -> Result<Self, KeyError> {
        Ok(())
    }
}

impl<const N: usize> KeyCodec for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
        take(input, N)?.try_into().map_err(|_| KeyError::Short)
    }
}

/// Variable bytes: `00` becomes `00 FF`, the end is `00 01`.
impl KeyCodec for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_escaped(self, out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
        let mut out = Vec::new();
        loop {
            match u8::decode(input)? {
                0 => match u8::decode(input)? {
                    0xFF => out.push(0),
                    0x01 => return Ok(out),
                    _ => return Err(KeyError::Invalid),
                },
                byte => out.push(byte),
            }
        }
    }
}

fn encode_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xFF);
        }
    }
    out.extend_from_slice(&[0, 1]);
}

impl KeyCodec for String {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_escaped(self.as_bytes(), out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
        String::from_utf8(Vec::decode(input)?).map_err(|_| KeyError::Invalid)
    }
}

macro_rules! tuple {
    ($($name:ident $i:tt),+) => {
        impl<$($name: KeyCodec),+> KeyCodec for ($($name,)+) {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$i.encode(out);)+
            }
            fn decode(input: &mut &[u8]) -> Result<Self, KeyError> {
                Ok(($($name::decode(input)?,)+))
            }
        }
    };
}
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

impl<A, B> HasPrefix<A> for (A, B) {}
impl<A, B, C> HasPrefix<A> for (A, B, C) {}
impl<A, B, C> HasPrefix<(A, B)> for (A, B, C) {}
impl<A, B, C, D> HasPrefix<A> for (A, B, C, D) {}
impl<A, B, C, D> HasPrefix<(A, B)> for (A, B, C, D) {}
impl<A, B, C, D> HasPrefix<(A, B, C)> for (A, B, C, D) {}
