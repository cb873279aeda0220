//! What other inboxes do, done here: one test per behaviour, named after it.

mod modulus;
mod semastery;
mod turbomediator;
mod vulthil;
