//! Values that the application shares with its handlers.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The values given with `InboxBuilder::state`, one per type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }

    pub(crate) fn has(&self, requirement: Requirement) -> bool {
        self.0.contains_key(&requirement.id)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}

/// A type of state that a handler's parameters ask for; `build()` checks that it was given.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    id: TypeId,
    pub(crate) name: &'static str,
}

impl Requirement {
    /// The requirement for a state of type `T`.
    pub fn of<T: 'static>() -> Self {
        Self { id: TypeId::of::<T>(), name: type_name::<T>() }
    }
}

/// A value given with [`InboxBuilder::state`](crate::InboxBuilder::state); reads as the value itself.
#[derive(Debug)]
pub struct State<T>(Arc<T>);

impl<T: Send + Sync + 'static> State<T> {
    pub(crate) fn from_states(states: &States) -> Option<Self> {
        states.get().map(Self)
    }
}

impl<T> Deref for State<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
